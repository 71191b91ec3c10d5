"""The page at `/` in a real browser: it speaks, and where the service needs a key, the page can bring one."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.store.open import open_store
from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from tests.support.browser import Page, browsing, chromium
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, ring_of
from tests.support.live_server import Live, serving

pytestmark = pytest.mark.slow

SPOKEN = "document.getElementById('total').textContent.endsWith(' s')"
ERROR = "document.getElementById('error').textContent"
SPEAK = "document.getElementById('go').click()"
VOICES = "document.getElementById('voice').options.length"


def visit(live: Live, tmp_path: Path, see: Callable[[Page], Awaitable[None]]) -> None:
    async def go(port: int) -> None:
        async with browsing(port) as page:
            await page.open(live.url + "/")
            await see(page)

    with chromium(tmp_path / "profile") as port:
        asyncio.run(go(port))


def test_a_text_is_spoken(tmp_path: Path):
    async def see(page: Page) -> None:
        await page.until(f"{VOICES} > 0")
        await page.run(SPEAK)
        await page.until(SPOKEN)
        assert await page.run(ERROR) == ""
        assert (await page.run("document.getElementById('length').textContent")).endswith(" s")

    with serving(make_services(Speaker())) as live:
        visit(live, tmp_path, see)


def test_what_is_not_spoken_is_shown_with_the_languages(tmp_path: Path):
    async def stream(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        lost = () if request.text == "Hello." else (("emoji", 2), ("unknown_to_model", 7))
        async with aclosing(Speaker().stream(request)) as chunks:
            async for chunk in chunks:
                yield replace(chunk, warnings=() if chunk.first_sample else lost)

    async def see(page: Page) -> None:
        await page.until(f"{VOICES} > 0")
        assert await page.run("document.getElementById('languages').textContent") == "zh, en"
        for text, shown in (("Hello 世界.", "emoji: 2, unknown to model: 7"), ("Hello.", "none")):
            await page.run(f"document.getElementById('input').value = {json.dumps(text)}")
            await page.run(SPEAK)
            await page.until(SPOKEN)
            assert await page.run("document.getElementById('warnings').textContent") == shown

    with serving(make_services(Speaker(), stream=stream)) as live:
        visit(live, tmp_path, see)


def test_a_service_with_keys_is_spoken_to_with_the_key_of_the_tab(tmp_path: Path):
    store = open_store(str(tmp_path / "store.sqlite"))
    key, _ = add(store, scopes=(Scope.SPEECH, Scope.VOICES))
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))

    async def see(page: Page) -> None:
        await page.run(SPEAK)
        await page.until(f"{ERROR}.includes('send a key')")
        assert await page.run("document.activeElement.id") == "key"
        assert await page.run(VOICES) == 0
        await page.type("key", f" {key} ")
        await page.until(f"{VOICES} > 0")
        await page.run(SPEAK)
        await page.until(SPOKEN)
        assert await page.run(ERROR) == ""
        picture[:] = await page.picture()
        # The tab remembers it, and nothing that outlives the tab or leaves it.
        await page.open(live.url + "/?again")
        assert await page.run("document.getElementById('key').value") == key
        await page.until(f"{VOICES} > 0")
        kept = await page.run("JSON.stringify([document.cookie, {...localStorage}, location.href])")
        assert key not in kept
        await page.type("key", "x")
        await page.run(SPEAK)
        await page.until(f"{ERROR}.includes('no such key')")
        assert key not in await page.run("document.body.innerText")

    picture = bytearray()
    try:
        with serving(services) as live:
            visit(live, tmp_path, see)
    finally:
        store.close()
    (tmp_path / "page.png").write_bytes(picture)
