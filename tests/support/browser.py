"""Browser: Debian's Chromium without a window, driven by playwright."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from playwright import async_api
from playwright.async_api import async_playwright

from tests.support.services import needed_program

ANSWER_TIMEOUT_S = 120.0
SAYS = "document.body.innerText.slice(0, 2000)"


class Page:
    """One tab, `tab` for playwright."""

    def __init__(self, tab: async_api.Page) -> None:
        self.tab = tab
        self.problems: list[str] = []
        """what the console was told: exceptions, what the page's policy forbids, files that are missing"""
        tab.on("pageerror", lambda error: self.problems.append(str(error)))
        tab.on("console", self._note)

    def _note(self, message: async_api.ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"{message.text} {message.location['url']}")

    async def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        return await self.tab.evaluate(script)

    async def open(self, url: str) -> None:
        """Returns once the page is loaded."""
        await self.tab.goto(url)

    async def type(self, element: str, text: str) -> None:
        """As fingers do, into the element with that id, and on to the next one."""
        await self.tab.focus(f"#{element}")
        await self.tab.keyboard.insert_text(text)
        await self.run(f"document.getElementById({element!r}).blur()")

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of the element: browsers start sound after a real click alone."""
        await self.tab.click(selector)

    async def press(self, keys: str) -> None:
        """A key, such as Escape or Control+Enter, on whatever has the focus."""
        await self.tab.keyboard.press(keys)

    async def look(self, *, width: int = 1000, height: int = 900, dark: bool = False) -> None:
        """A window of that size on a system with that theme."""
        await self.tab.set_viewport_size({"width": width, "height": height})
        await self.tab.emulate_media(color_scheme="dark" if dark else "light")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        began = time.monotonic()
        while not await self.run(condition):
            if time.monotonic() - began >= ANSWER_TIMEOUT_S:
                raise AssertionError(f"never true: {condition}; the page says: {await self.run(SAYS)}")
            await asyncio.sleep(0.02)


class Browser:
    """Chromium, and the event loop that its pages are used in."""

    def __init__(self, runner: asyncio.Runner, chromium: async_api.Browser) -> None:
        self._runner, self._chromium = runner, chromium

    def visit(self, see: Callable[[Page], Awaitable[None]], *, script: str | None = None) -> None:
        """Does what `see` does, in a tab with a storage of its own.

        Args:
            script: what runs before each page's own; the page's policy does not hold then.
        """

        async def go() -> None:
            context = await self._chromium.new_context(bypass_csp=script is not None)
            context.set_default_timeout(1000 * ANSWER_TIMEOUT_S)
            async with context:
                if script is not None:
                    await context.add_init_script(script)
                await see(Page(await context.new_page()))

        self._runner.run(go())


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser."""
    program = needed_program("chromium", "chromium")
    with asyncio.Runner() as runner:
        playwright = runner.run(async_playwright().start())
        browser = runner.run(playwright.chromium.launch(executable_path=program, args=["--disable-dev-shm-usage"]))
        try:
            yield Browser(runner, browser)
        finally:
            runner.run(browser.close())
            runner.run(playwright.stop())
