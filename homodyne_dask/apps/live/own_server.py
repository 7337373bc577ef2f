"""The page /fit of fits on threads of this process: a server of its own, on the loopback address."""

import asyncio
import atexit
import socket
import threading
from functools import cache

from homodyne_dask.apps.live.shown_fits import MAX_BODY_BYTES, ShownFits

LOOPBACK = "127.0.0.1"


@cache
def served(process: int) -> tuple[ShownFits, str]:
    """Return the fits that this process shows until it ends, and the address of their page.

    process: its number, which another one that is forked from it does not have.
    """
    shown, listening = ShownFits(), socket.create_server((LOOPBACK, 0))
    listening.setblocking(False)
    threading.Thread(target=asyncio.run, args=[_serve(shown, listening)], daemon=True).start()
    atexit.register(lambda: asyncio.run(shown.fetched()))
    return shown, f"http://{LOOPBACK}:{listening.getsockname()[1]}/fit"


async def _serve(shown: ShownFits, listening: socket.socket) -> None:
    from tornado.httpserver import HTTPServer
    from tornado.web import Application

    server = HTTPServer(Application(shown.routes), max_body_size=MAX_BODY_BYTES)
    server.add_socket(listening)
    await asyncio.Event().wait()
