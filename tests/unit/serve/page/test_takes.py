"""Takes: several seeds at once, keep one; and the history of the tab."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from pipeline.types import AudioChunk, SynthesisRequest
from tests.support.browser import Page
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.relay import relay
from tests.support.studio import AWAY, BACK, FINISHED, PLAYED, go_to, minutes_later, unfold, visit, work, write
from tests.support.waiting import until

pytestmark = pytest.mark.slow

CARDS = "[...document.querySelectorAll('.take')]"
DONE = f"{CARDS}.every(card => !card.textContent.includes('…'))"
TAKEN = "Voice of the service"  # nobody was measured
ABOUT = f"{CARDS}.map(card => card.querySelector('.figures').textContent)"


def test_several_seeds_are_spoken_at_once_and_one_is_kept(browser):
    speaker, seeds = Speaker(), []

    async def together(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        seeds.append(request.sampling.seed)
        await until(lambda: len(seeds) >= 3)  # no take ends unless all have begun
        async with aclosing(speaker.stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def see(page: Page) -> None:
        await unfold(page)
        await write(page, "#seed", "100")
        await work(page, "attempts")
        await page.click("#make-takes")
        await page.until(f"{CARDS}.length === 3 && {DONE}")
        assert sorted(await page.run(ABOUT)) == [f"seed {seed} · {TAKEN} · 1.00 s" for seed in (100, 101, 102)]
        await page.click(".take:nth-child(2) .play")
        await page.until(PLAYED)
        await page.click(".take:nth-child(2) .keep")
        await page.until(f"{CARDS}.length === 1")
        assert await page.run(ABOUT) == [f"seed 101 · {TAKEN} · 1.00 s"]
        await go_to(page, "speak")
        assert await page.run("[seed.value, locked.checked]") == ["101", True]
        await page.click("#go")
        await page.until(FINISHED)
        assert await page.run("document.querySelector('#fact-seed').textContent") == "101"

    with serving(make_services(speaker, stream=together)) as live:
        visit(browser, live.url, see)


def test_the_history_replays_fills_the_form_and_forgets(browser):
    async def see(page: Page) -> None:
        for text in ("First.", "Second."):
            await write(page, "#input", text)
            await page.click("#go")
            await page.until(f"{FINISHED} && document.querySelector('#playing').textContent === '{text}'")
        await work(page, "attempts")
        assert await page.run(f"{CARDS}.map(card => card.querySelector('.title').textContent)") == ["Second.", "First."]
        await page.click(".take:nth-child(2) .play")
        await page.until("document.querySelector('#playing').textContent === 'First.'")
        await page.click(".take:nth-child(2) .use")
        assert await page.run("document.querySelector('#work-text').value") == "First."
        await page.click(".take:nth-child(1) .copy")
        await page.until("document.querySelector('.take .copy').dataset.said")
        await page.click(".take:nth-child(1) .delete")
        await page.until(f"{CARDS}.length === 1")
        await page.click("#delete-all")
        await page.until(f"{CARDS}.length === 0 && document.body.textContent.includes('Nothing was spoken')")

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_stop_ends_all_takes(browser):
    speaker = Speaker(chunks=None, pause_s=0.02)

    async def see(page: Page) -> None:
        await work(page, "attempts")
        await page.click("#make-takes")
        await until(lambda: speaker.opened == 3)
        await page.press("Escape")
        await until(lambda: speaker.closed == 3)
        await page.until(DONE)

    with serving(make_services(speaker)) as live:
        visit(browser, live.url, see)


def test_takes_that_a_dead_service_cut_are_made_again(browser):
    speaker = Speaker(chunks=None, pause_s=0.05)

    async def see(page: Page) -> None:
        await unfold(page)
        await write(page, "#seed", "5")
        await work(page, "attempts")
        await page.click("#make-takes")
        await page.until(f"{ABOUT}.filter(about => about.includes('{TAKEN}')).length === 3")
        link.cut()
        await page.until(AWAY)
        await minutes_later(page)
        await page.until(f"{CARDS}.every(card => card.textContent.includes('went away in the middle'))")
        link.restore()
        await page.until(BACK)
        speaker.chunks = 2
        for _ in range(3):
            await page.click(".take .error button")
        await page.until(
            f"{ABOUT}.filter(about => about.endsWith('0.40 s')).length === 3 && !document.querySelector('.take .error')"
        )
        assert sorted(await page.run(ABOUT)) == [f"seed {seed} · {TAKEN} · 0.40 s" for seed in (5, 6, 7)]

    with serving(make_services(speaker)) as live, relay(live.port) as link:
        visit(browser, link.url, see)
