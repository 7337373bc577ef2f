"""The server of the page, on the loopback address; whoever opens the page needs the token in its address."""

import asyncio
import html
import logging
import os
import secrets
import signal
import socket
import sys
import weakref
import webbrowser
from collections.abc import Sequence
from contextlib import closing
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory

from homodyne_dask.apps.view.viewed_data import Viewable, open_shown, sources_of
from homodyne_dask.cli.printing import echo
from homodyne_dask.errors import OptionError, require_package, require_type

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 18
FRAME = (
    '<iframe src="{}" title="data and fits" width="100%" height="1100" style="border: 0"></iframe>'
)
MAX_BODY_BYTES = 1_000_000
"""Most of a request and of a message of the page, of which none is larger; more is refused unread."""


class View:
    """A page that is served until it is closed; a notebook shows it as the output of a cell."""

    def __init__(self, viewed: Sequence[Viewable], port: int) -> None:
        require_package("view", "bokeh", "view")
        from bokeh.server.server import Server

        from homodyne_dask.apps.view.view_page import ViewPage  # lazy: Bokeh may be missing

        sources = sources_of(viewed)
        open_shown(sources[0], sources)  # a mistake is raised before the page is served
        _check_port(port)
        path = f"/{secrets.token_urlsafe(TOKEN_BYTES)}"
        log = logging.getLogger("bokeh.server.util")
        before, log.disabled = log.disabled, True  # it warns of what the next line takes
        try:  # every origin: the token says who may, and behind ssh -L ports differ
            options = {"use_index": False, "redirect_root": False, "allow_websocket_origin": ["*"]}
            options |= {"websocket_max_message_size": MAX_BODY_BYTES}
            options |= {"http_server_kwargs": {"max_body_size": MAX_BODY_BYTES}}
            page = {path: lambda document: ViewPage(sources).show_in(document)}
            server = Server(page, address=LOOPBACK, port=port, **options)
        finally:
            log.disabled = before
        server.start()
        self.address = f"http://{LOOPBACK}:{server.port}{path}"
        """Of the page by itself, on this machine; who has it sees the data."""
        self._stop = weakref.finalize(self, server.stop)
        self._stop.atexit = False  # its loop has ended then

    def close(self) -> None:
        """End the page."""
        self._stop()

    def __repr__(self) -> str:
        return f"a page at {self.address}"

    def _repr_html_(self) -> str:
        return FRAME.format(html.escape(address_at_hub(self.address) or self.address))


def _check_port(port: int) -> None:
    """Raise OptionError for a port that is taken; the library leaves its socket open then."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
    except (OSError, OverflowError) as e:
        reason = getattr(e, "strerror", None) or "there is no such port"
        raise OptionError(
            f"port {port} cannot be used ({reason}): give another --port, or leave it out to use a free port"
        ) from e


async def serve_page(viewed: Sequence[Viewable], port: int, opens: bool | None = None) -> None:
    """Serve the page until SIGINT or SIGTERM; opens: in a browser, by default where there is a display."""
    if opens is None:
        opens = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    with closing(View(viewed, port)) as page, TemporaryDirectory(prefix="homodyne-dask-") as folder:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        echo(page.address)
        if at_hub := address_at_hub(page.address):
            echo(f"on JupyterHub, with jupyter-server-proxy: {at_hub}")
        if opens:
            webbrowser.open(leading_file(page.address, Path(folder)).as_uri())
        await ended.wait()


def leading_file(address: str, folder: Path) -> Path:
    """Write a file that leads to an address: others can read the command line of a browser, not the file."""
    file = folder / "view.html"
    file.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={address}">')
    return file


def address_at_hub(address: str) -> str | None:
    """Return the path that jupyter-server-proxy gives a page on a JupyterHub, None elsewhere."""
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    return prefix and f"{prefix.rstrip('/')}/proxy/{address.rpartition(':')[2]}"


def view(*what: Viewable, port: int = 0) -> View | None:
    """Show stores and results on a web page: data, model and residuals, down to single pairs.

    what: paths of stores, of fits and of folders of fits, scans, results of `fit`; of several, one is chosen
    on the page. port: by default a free port; give one that is forwarded if the browser is on another
    machine.

    In a notebook, also of a JupyterHub, the page is the output of the cell. Otherwise its address is
    printed, a browser is opened if there is a display, and the function returns after Ctrl-C. Raises
    OptionError, StoreError and SourceError for what cannot be shown.

    >>> hd.view("A0123_fit", "A0123_c2.zarr")  # doctest: +SKIP
    """
    require_type("port", port, Integral, "a port number, or 0 for a free port")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(serve_page(what, port))
        return None
    return View(what, port)
