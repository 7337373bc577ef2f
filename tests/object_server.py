"""A server of objects on loopback: moto's S3 in a process of its own, as a store by URL meets it."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homodyne_dask.store import objects

BUCKET = "beamtime"
SECRET = "secret-of-the-test"
_START = 60.0
"""s; it starts in 3 on an idle machine."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the address of a server with one bucket, which the environment names as S3's."""
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.split(":")[2]]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process, environment(address):
        try:
            _wait(address)
            make_bucket(address)
            yield address
        finally:
            process.kill()


@contextmanager
def environment(address: str) -> Iterator[None]:
    """Name a server and its credentials in the environment, from which connections are made."""
    given = {
        "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key-of-the-test", "AWS_SECRET_ACCESS_KEY": SECRET,
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    objects.connection.cache_clear()
    try:
        yield
    finally:
        objects.connection.cache_clear()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _wait(address: str) -> None:
    deadline = time.monotonic() + _START
    while True:
        try:
            ask("GET", f"{address}/moto-api/")
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def ask(method: str, url: str) -> bytes:
    """Return what a server answers."""
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        return answer.read()


def make_bucket(address: str) -> None:
    ask("PUT", f"{address}/{BUCKET}")


def uploaded(folder: Path, name: str) -> str:
    """Copy a folder of files into the bucket; return its URL."""
    store = objects.connection(f"s3://{BUCKET}")
    for file in folder.rglob("*"):
        if file.is_file():
            store.put(f"{name}/{file.relative_to(folder)}", file.read_bytes())
    return f"s3://{BUCKET}/{name}"
