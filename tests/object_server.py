"""Servers of objects on loopback, as a store by URL meets them, each in a process of its own.

S3 is moto's, of the packages for tests.
"""

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

from homodyne_dask.store import object_stores as objects

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
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, f"{address}/moto-api/"), environment(address):
        make_bucket(address)
        yield address


@contextmanager
def running(command: list[str], answering: str) -> Iterator[None]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        try:
            _wait(answering)
            yield
        finally:
            process.kill()


def environment(address: str) -> AbstractContextManager[None]:
    """Name a server of S3 and its credentials in the environment, from which connections are made."""
    return named({
        "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
    })  # fmt: skip


@contextmanager
def named(given: dict[str, str]) -> Iterator[None]:
    with patch.dict(os.environ, given):
        objects.connection.cache_clear()
        try:
            yield
        finally:
            objects.connection.cache_clear()


def _wait(address: str) -> None:
    deadline = time.monotonic() + _START
    while True:
        try:
            ask("GET", address)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def ask(method: str, url: str, body: bytes | None = None, **headers: str) -> bytes:
    given = {"Content-Type": "text/plain"} | headers
    request = urllib.request.Request(url, body, given, method=method)
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def make_bucket(address: str, name: str = BUCKET) -> None:
    ask("PUT", f"{address}/{name}")


def uploaded(folder: Path, name: str, bucket: str = BUCKET) -> str:
    store = objects.connection(f"s3://{bucket}")
    for file in folder.rglob("*"):
        if file.is_file():
            store.put(f"{name}/{file.relative_to(folder)}", file.read_bytes())
    return f"s3://{bucket}/{name}"


class _Quiet(BaseHTTPRequestHandler):
    """Has an address on another server, and says nothing."""

    target: ClassVar[str] = ""
    seen: ClassVar[list] = []

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            if name not in ("Connection", "Transfer-Encoding", "Date", "Server"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Proxy(_Quiet):
    """Passes requests on; of each 20 one fails, one gets no answer and one is slow."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.seen.append(1)
        turn = len(self.seen) % 20
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if turn == 3:
            self.reply(503, {})
        elif turn == 9:
            self.close_connection = True
        else:
            time.sleep(0.2 if turn == 14 else 0)
            request = urllib.request.Request(
                self.target + self.path, body or None, dict(self.headers), method=self.command
            )
            try:
                with urllib.request.urlopen(request) as answer:
                    self.reply(answer.status, dict(answer.headers), answer.read())
            except urllib.error.HTTPError as refused:
                self.reply(refused.code, {}, refused.read())

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - names of http.server


class _Redirecting(_Quiet):
    def do_GET(self) -> None:
        self.reply(307, {"Location": self.target + self.path.removeprefix("/here")})


class Recording(_Quiet):
    def do_GET(self) -> None:
        self.seen.append(f"{self.path}\n{self.headers}")
        self.send_error(404)


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler], host: str, key: Path | None = None):
    """Run a server of this process; yield its host and port. key: a folder of a certificate, for TLS."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        if key is not None:
            speaks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            speaks.load_cert_chain(key / "certificate.pem", key / "key.pem")
            server.socket = speaks.wrap_socket(server.socket, server_side=True)
        running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        running.start()
        try:
            yield f"{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            running.join()


@contextmanager
def faulty(address: str) -> Iterator[list[int]]:
    """Put a proxy before a server that fails, is silent or is slow; yield an entry for each request."""
    _Proxy.target, _Proxy.seen = address, []
    with answering(_Proxy, "127.0.0.1") as proxy, environment(f"http://{proxy}"):
        yield _Proxy.seen


@contextmanager
def redirected(host: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server that leads to one on `host`, and the requests that come there."""
    Recording.seen = []
    with answering(Recording, host) as there, answering(_Redirecting, "127.0.0.1") as here:
        _Redirecting.target = f"http://{there}"
        yield f"http://{here}", Recording.seen
