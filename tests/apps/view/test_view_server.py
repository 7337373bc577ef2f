"""The command `view` and its server."""

import asyncio
import re
import signal
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tornado.httpclient import AsyncHTTPClient

import homodyne_dask as hd
from homodyne_dask.apps.view.view_server import leading_file
from tests.html_pages import LARGE, answer_to
from tests.run_command import run
from tests.synthetic import measured, module_scan

scan = module_scan(lambda: measured([2500.0, -0.3, 100.0], 40), "A0001_c2")
"""One bin of 40 frames."""


@pytest.fixture
def served(scan):
    """The command, and the address that it prints."""
    words = [sys.executable, "-m", "homodyne_dask.cli", "view", scan.path, "--no-browser"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        yield program, program.stdout.readline().strip()
        program.kill()


@pytest.mark.long
def test_the_command_serves_who_has_the_address_until_ctrl_c(served):
    program, address = served
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{24}", address)
    with urlopen(address) as answer:
        assert b"Bokeh" in answer.read()
    beginning = address.rpartition("/")[0]
    for path in ("", "/", "/ws", "/x" * 12, f"/{'x' * 24}", f"/{'x' * 24}/autoload.js"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(beginning + path)
    taken = run("view", served[0].args[-2], "--no-browser", "--port", beginning.rpartition(":")[2])
    assert taken.exit_code == 2
    assert "cannot be used (Address already in use): give another --port" in taken.stderr
    program.send_signal(signal.SIGINT)
    assert program.wait(10) == 0
    assert program.communicate() == ("", "")


@pytest.mark.long
@pytest.mark.parametrize("how", LARGE)
def test_a_large_body_is_refused_before_it_is_there(served, how):
    _, address = served
    port = int(address.split(":")[2].partition("/")[0])
    for path in ("/", f"/{address.rpartition('/')[2]}"):
        assert answer_to(port, path, how) == b"HTTP/1.1 400 Bad Request"
    with urlopen(address) as answer:
        assert b"Bokeh" in answer.read()


def test_the_command_line_of_a_browser_does_not_hold_the_token(tmp_path):
    file = leading_file("http://127.0.0.1:5006/token", tmp_path)
    assert "token" not in file.relative_to(tmp_path).as_posix()
    assert 'content="0; url=http://127.0.0.1:5006/token"' in file.read_text()


def test_in_a_notebook_the_page_is_the_output_of_the_cell(scan):
    async def cell() -> tuple[str, bytes, str]:
        page = hd.view(scan)
        answer = await AsyncHTTPClient().fetch(page.address)
        page.close()
        return page.address, answer.body, page._repr_html_()

    address, body, html = asyncio.run(cell())
    assert b"A0001_c2.zarr" in body
    assert f"{address}/autoload.js" in html


def test_what_is_no_store_is_one_sentence(tmp_path):
    result = run("view", str(tmp_path))
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "is not a Zarr store" in result.stderr
