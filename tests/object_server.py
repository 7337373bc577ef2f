"""A server of objects on loopback: moto's S3 in a process of its own, as a store by URL meets it."""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from homodyne_dask.store import objects

BUCKET = "beamtime"
KEY, SECRET = "key-of-the-test", "secret-of-the-test"
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
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
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


def ask(method: str, url: str, body: bytes | None = None) -> bytes:
    """Return what a server answers."""
    request = urllib.request.Request(url, body, {"Content-Type": "text/plain"}, method=method)
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def make_bucket(address: str, name: str = BUCKET) -> None:
    ask("PUT", f"{address}/{name}")


def uploaded(folder: Path, name: str, bucket: str = BUCKET) -> str:
    """Copy a folder of files into a bucket; return its URL."""
    store = objects.connection(f"s3://{bucket}")
    for file in folder.rglob("*"):
        if file.is_file():
            store.put(f"{name}/{file.relative_to(folder)}", file.read_bytes())
    return f"s3://{bucket}/{name}"


class _Proxy(BaseHTTPRequestHandler):
    """Passes requests on; of each 20 one fails, one gets no answer and one is slow."""

    protocol_version = "HTTP/1.1"
    target = ""
    seen: ClassVar[list[int]] = []

    def answer(self) -> None:
        self.seen.append(1)
        turn = len(self.seen) % 20
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if turn == 3:
            self.reply(503, {}, b"")
        elif turn == 9:
            self.close_connection = True
        else:
            time.sleep(0.2 if turn == 14 else 0)
            request = urllib.request.Request(
                self.target + self.path, body or None, dict(self.headers), method=self.command
            )
            try:
                with urllib.request.urlopen(request) as found:
                    self.reply(found.status, dict(found.headers), found.read())
            except urllib.error.HTTPError as refused:
                self.reply(refused.code, {}, refused.read())

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            if name not in ("Connection", "Transfer-Encoding", "Date", "Server"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def faulty(address: str) -> Iterator[list[int]]:
    """Put a proxy before a server that fails, is silent or is slow; yield an entry for each request."""
    _Proxy.target, _Proxy.seen = address, []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Proxy) as proxy:
        running = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        running.start()
        try:
            with environment(f"http://127.0.0.1:{proxy.server_address[1]}"):
                yield _Proxy.seen
        finally:
            proxy.shutdown()
            running.join()
