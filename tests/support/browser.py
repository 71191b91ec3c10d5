"""Browser: a headless Chromium that opens a page of ours, driven over its DevTools protocol."""

import asyncio
import base64
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.services import needed_program

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 120.0
SAYS = "document.body.innerText.slice(0, 2000)"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--mute-audio",
    "--window-size=800,760",
)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._asked = 0
        self.problems: list[str] = []
        """what the console was told: exceptions, what the page's policy forbids, files that are missing"""

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol and its answer."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": params})
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while True:
                message = await self._socket.receive_json()
                self._note(message)
                if message.get("id") == self._asked:
                    assert "error" not in message, message
                    answer: dict[str, Any] = message["result"]
                    return answer

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        answer = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def open(self, url: str) -> None:
        """Returns once the page is loaded."""
        for domain in ("Runtime", "Log", "Page"):
            await self.ask(f"{domain}.enable")
        await self.ask("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    async def type(self, element: str, text: str) -> None:
        """As fingers do, into the element with that id, and on to the next one."""
        await self.run(f"document.getElementById({element!r}).focus()")
        await self.ask("Input.insertText", text=text)
        await self.run(f"document.getElementById({element!r}).blur()")

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of the element: browsers start sound after a real click alone."""
        box = f"document.querySelector({selector!r})"
        await self.until(f"{box} !== null && !{box}.disabled")
        await self.run(f"{box}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        place = await self.run(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({box}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            await self.ask(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1, pointerType="mouse"
            )

    async def press(self, key: str, *, modifiers: int = 0) -> None:
        """A key, on whatever has the focus; modifiers: 1 Alt, 2 Ctrl, 8 Shift."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, " ": 32}
        text = {"text": "\r"} if key == "Enter" and not modifiers else {}
        for kind in ("keyDown", "keyUp"):
            about = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": modifiers, **text}
            await self.ask("Input.dispatchKeyEvent", type=kind, **about)

    async def look(self, *, width: int = 1000, height: int = 900, dark: bool = False) -> None:
        """A window of that size on a system with that theme."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[theme])

    async def until(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        began = time.monotonic()
        while not await self.run(condition):
            if time.monotonic() - began >= ANSWER_TIMEOUT_S:
                raise AssertionError(f"never true: {condition}; the page says: {await self.run(SAYS)}")
            await asyncio.sleep(0.02)

    async def picture(self) -> bytes:
        """A PNG of what is seen."""
        return base64.b64decode((await self.ask("Page.captureScreenshot", format="png"))["data"])


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[int]:
    """A browser with a profile in an empty folder; yields the port of its DevTools."""
    program = needed_program("chromium", "chromium")
    port_file = folder / "DevToolsActivePort"
    command = [program, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            began = time.monotonic()
            while not (port_file.exists() and "\n" in port_file.read_text()):
                assert process.poll() is None, "chromium has ended"
                assert time.monotonic() - began < START_TIMEOUT_S, "chromium does not start"
                time.sleep(0.05)
            yield int(port_file.read_text().splitlines()[0])
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def browsing(port: int) -> AsyncIterator[Page]:
    """The browser's one tab."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
            (tab,) = [found for found in await reply.json() if found["type"] == "page"]
        async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            yield Page(socket)
