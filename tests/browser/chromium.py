"""Chromium, driven over its DevTools protocol on the loopback address: open, look, press keys."""

import asyncio
import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.websocket import WebSocketClientConnection, websocket_connect

PROGRAM = shutil.which("chromium")
NEEDED = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed"),
]
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-port=0",
)  # fmt: skip
PATIENCE = 60.0
"""Seconds after which what was waited for will not come."""
ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "browser"
"""Pictures of the pages, to be looked at."""
OUTSIDE = """[...document.querySelectorAll("body *")].filter(e => !e.closest(".wide")
  && !e.closest("svg") && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"""
NAMELESS = """[...document.querySelectorAll("img, svg")].filter(e =>
  !(e.alt || e.getAttribute("aria-label"))).length"""


class Tab:
    def __init__(self, connection: WebSocketClientConnection, loop: asyncio.AbstractEventLoop):
        self.connection, self.loop = connection, loop
        self.sent = 0
        self.complaints: list[str] = []
        """What the page wrote to the console as errors and warnings."""
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.loop.run_until_complete(
            asyncio.wait_for(self._command(method, parameters), PATIENCE)
        )

    async def _command(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": parameters}
        await self.connection.write_message(json.dumps(message))
        while True:
            text = await self.connection.read_message()
            assert text is not None, "the browser is gone"
            answer = json.loads(text)
            if answer.get("id") == self.sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        level = {
            "Runtime.exceptionThrown": lambda: "error",
            "Log.entryAdded": lambda: told["entry"]["level"],
            "Runtime.consoleAPICalled": lambda: told["type"],
        }.get(event["method"], lambda: "")()
        if level in ("error", "warning"):
            self.complaints.append(str(told))

    def value(self, expression: str) -> Any:
        found = self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        end = time.monotonic() + PATIENCE
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"never true: {expression}\n{self.text()}"
            time.sleep(0.05)
        return value

    def open(self, address: str) -> None:
        self.command("Page.navigate", url=address)
        self.until("location.href != 'about:blank' && document.readyState == 'complete'")

    def text(self) -> str:
        return self.value("document.body.innerText")

    def press(self, key: str, code: int) -> None:
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, **given)

    def click(self, x: float, y: float) -> None:
        for kind in ("Moved", "Pressed", "Released"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def mouse(self, kind: str, x: float, y: float, **parameters: Any) -> None:
        self.command("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **parameters)

    def look(self, width: int, scheme: str, height: int = 900) -> None:
        """Make the window so wide, and prefer a scheme: light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        wish = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=wish)

    def shot(self, name: str) -> None:
        found = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        (ARTEFACTS / f"{name}.png").write_bytes(base64.b64decode(found["data"]))

    def check_layout(self, name: str) -> None:
        """Nothing lies outside of narrow and wide windows in both schemes, of which pictures are kept."""
        for width in (400, 1200):
            for scheme in ("light", "dark"):
                self.look(width, scheme)
                self.shot(f"{name}-{width}-{scheme}")
                assert not self.value(OUTSIDE)


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """Start Chromium with an empty profile in a folder; yields its only tab."""
    assert PROGRAM is not None
    profile, loop = folder / "chromium", asyncio.new_event_loop()
    with subprocess.Popen(
        [PROGRAM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as program:  # fmt: skip
        try:
            port = _port(profile / "DevToolsActivePort")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            address = pages[0]["webSocketDebuggerUrl"]
            connection = loop.run_until_complete(_connected(address))
            yield Tab(connection, loop)
            loop.call_soon(connection.close)
            loop.run_until_complete(asyncio.sleep(0))
        finally:
            program.terminate()
            program.wait(PATIENCE)
            loop.close()


async def _connected(address: str) -> WebSocketClientConnection:
    return await websocket_connect(address, max_message_size=100_000_000)


def _port(file: Path) -> int:
    """Return the port the browser listens on, as soon as it says so."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError("chromium does not start")
