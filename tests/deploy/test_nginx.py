"""deploy/nginx and the units of systemd: who may see what of a watched folder and of `view`, behind TLS."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.websocket import websocket_connect

from tests.applications import application
from tests.deploy.small_fit import DEPLOY
from tests.free_ports import free_ports
from tests.run_command import run, viewing
from tests.synthetic import CREEP, measured, store

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
WHO = {"auth_username": "ada", "auth_password": "secret"}


@pytest.fixture
def site(tmp_path) -> Iterator[tuple[str, Path]]:
    """The address of nginx with our configuration, and the folder of fits that it serves."""
    if NGINX is None:
        pytest.skip("make test-deploy installs nginx")
    view = free_ports(2)
    port = view + 1
    files = {name: tmp_path / f"site.{name}" for name in ("key", "crt", "users")}
    certificate = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x"]
    words = ["openssl", *certificate, "-keyout", files["key"], "-out", files["crt"]]
    subprocess.run(words, check=True, capture_output=True)
    files["users"].write_text("ada:{PLAIN}secret\n")
    fits = tmp_path / "fits"
    fits.mkdir()
    text = (DEPLOY / "nginx/homodyne-dask.conf").read_text()
    for before, after in {
        "listen 443": f"listen 127.0.0.1:{port}",
        "127.0.0.1:5006": f"127.0.0.1:{view}",
        "/data/fits/": f"{fits}/",
        **{f"/etc/nginx/xpcs.example.org.{name}": str(files[name]) for name in ("key", "crt")},
        "/etc/nginx/homodyne-dask.users": str(files["users"]),
    }.items():
        assert before in text
        text = text.replace(before, after)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    user = "user root;" if tmp_path.owner() == "root" else ""
    (tmp_path / "nginx.conf").write_text(
        f"{user} daemon off; pid {tmp_path}/pid; error_log stderr; worker_processes 1; events {{}}"
        f"http {{ types {{ text/html html; }} access_log off; {temporary} {text} }}"
    )
    with subprocess.Popen([NGINX, "-e", "stderr", "-c", tmp_path / "nginx.conf"]) as program:
        yield f"https://127.0.0.1:{port}", fits
        program.terminate()


def fetched(address: str, **who: str) -> HTTPResponse:
    """The answer to a request, repeated until nginx listens."""

    async def fetch() -> HTTPResponse:
        for _ in range(200):
            try:
                request = HTTPRequest(address, validate_cert=False, **who)
                return await AsyncHTTPClient().fetch(request, raise_error=False)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
        raise AssertionError("nginx does not listen")

    return asyncio.run(fetch())


CODES = {
    "scans.html": 200,
    "A_fit/report.html": 200,
    "watch.json": 403,
    ".scans.lock": 403,
    "stores/A/c2/0": 403,
}


def test_who_has_the_password_sees_the_pages_of_a_watched_folder_and_not_its_data(site):
    address, fits = site
    for name in CODES:
        (fits / name).parent.mkdir(parents=True, exist_ok=True)
        (fits / name).write_text(name)
    assert fetched(f"{address}/scans/").code == 401
    wrong = {"auth_username": "ada", "auth_password": "no"}
    assert fetched(f"{address}/scans/scans.html", **wrong).code == 401
    codes = {"": 200} | CODES
    assert {name: fetched(f"{address}/scans/{name}", **WHO).code for name in codes} == codes
    assert fetched(f"{address}/scans/../../site.users", **WHO).code in (400, 401, 404)


@pytest.mark.long
def test_view_works_below_a_path_of_the_proxy(site, tmp_path):
    address, _ = site
    scan = store(measured(CREEP, 60, [0.0, 45.0], dt=0.1), tmp_path)
    application("view")
    [port] = re.findall(
        r"proxy_pass\s+http://127.0.0.1:(\d+)", (tmp_path / "nginx.conf").read_text()
    )
    with viewing(scan.path, "--port", port) as (_, printed):
        page = f"{address}/view/{printed.rpartition('/')[2]}"
        body = fetched(page, **WHO).body.decode()
        assert fetched(page).code == 401
        scripts = re.findall(r'<script[^>]* src="([^"]+)"', body)
        assert scripts
        assert {fetched(f"{address}/view/{path}", **WHO).code for path in scripts} == {200}
        asyncio.run(opened(page.replace("https", "wss") + "/ws", body))


async def opened(address: str, body: str) -> None:
    """Open the websocket of a page, whose first message says that the session is there."""
    token = re.search(r'"token":"([^"]+)"', body)
    assert token
    request = HTTPRequest(address, validate_cert=False, **WHO)
    socket = await websocket_connect(request, subprotocols=["bokeh", token[1]])
    assert "ACK" in str(await socket.read_message())
    socket.close()
    while await socket.read_message() is not None:  # None comes when the connection is closed
        pass


@pytest.mark.parametrize(
    "file", sorted((DEPLOY / "local").glob("*.service")), ids=lambda one: one.name
)
def test_a_unit_of_systemd_starts_a_command_that_there_is(file):
    unit = ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read(file)
    words = unit["Service"]["ExecStart"].split()
    assert words[0].endswith(".venv/bin/homodyne-dask")
    assert run(words[1], "--help").exit_code == 0
