"""Voices: found, heard, used, mixed, made from a seed and a recording, changed and deleted."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Page
from tests.support.live_server import Live
from tests.support.recordings import SAID, spoken, written
from tests.support.relay import relay
from tests.support.studio import attach, go_to, visit, write
from tests.support.voice_routes import voice_server, voices

pytestmark = pytest.mark.slow

CARDS = "[...document.querySelectorAll('.voice')].map(card => card.dataset.voice)"
STATUS = "document.querySelector('#voices-status').textContent"
PLAYING = "document.querySelector('#playing').textContent"
DURATION = "Number(document.querySelector('#wave').getAttribute('aria-valuemax'))"


@pytest.fixture
def live(tmp_path: Path):
    with voice_server(tmp_path) as server:
        yield server


async def listed(live: Live) -> dict[str, dict[str, Any]]:
    reply = await asyncio.to_thread(voices, live)
    return {voice["id"]: voice for voice in reply.json()["voices"]}


async def opened(page: Page) -> None:
    await go_to(page, "voices")
    await page.until(f"{CARDS}.length > 2")


def test_a_voice_is_found_heard_and_used(browser, live):
    async def see(page: Page) -> None:
        await opened(page)
        everybody = await page.run(CARDS)
        assert everybody == list(await listed(live))
        await write(page, "#voice-search", everybody[1])
        await page.until(f"{CARDS}[0] === {everybody[1]!r} && {CARDS}.length < {len(everybody)}")
        await page.click(".voice .preview")
        await page.until(f"{PLAYING}.startsWith('Preview of') && {DURATION} > 0.5")
        await page.click(".voice .use")
        await page.until(f"{STATUS}.includes('speaks now')")
        assert await page.run("JSON.parse(sessionStorage.getItem('draft')).voice") == everybody[1]
        await write(page, "#voice-search", "nobody has this name")
        await page.until(f"{CARDS}.length === 0")
        assert page.problems == []

    visit(browser, live.url, see)


def test_voices_are_mixed_with_sliders(browser, live):
    async def see(page: Page) -> None:
        await opened(page)
        first, second = (await page.run(CARDS))[1:3]
        await page.click("#blend summary")
        shown = "document.querySelector('#blend-shown').textContent"
        await page.until(f"{shown} === 'blend:{first}(0.5)+{second}(0.5)'")
        slider = "document.querySelector('#blend-rows li:nth-child(2) input')"
        await page.run(f"{slider}.focus()")
        await page.press("ArrowLeft")
        await page.until(f"{shown}.endsWith('+{second}(0.45)')")
        await page.click("#blend-listen")
        await page.until(f"{PLAYING}.includes('0.45') && {DURATION} > 0.5")
        await write(page, "#blend .voice-name", "both")
        await page.click("#blend .save")
        await page.until(f"{STATUS} === 'both is saved.' && {CARDS}.includes('both')")
        assert (await listed(live))["both"]["origin"] == "blend"

    visit(browser, live.url, see)


def test_a_voice_is_made_of_a_seed_changed_and_deleted(browser, live):
    async def see(page: Page) -> None:
        await opened(page)
        await page.click("#from-seed summary")
        await page.click("#suggest")
        await page.click("#voice-suggestions li:nth-child(2) button")
        await page.until(f"{PLAYING}.startsWith('Preview of seed ')")
        await write(page, "#voice-seed", "2222")
        await write(page, "#from-seed .voice-name", "anna")
        await write(page, "#from-seed .voice-languages", "en zh")
        await page.click("#from-seed .save")
        await page.until(f"{CARDS}.includes('anna')")
        assert (await listed(live))["anna"]["languages"] == ["en", "zh"]
        card = ".voice[data-voice=anna]"
        await page.click(f"{card} .edit-voice")
        await write(page, f"{card} .voice-description", "one of ours")
        await page.click(f"{card} .save")
        await page.until(f"document.querySelector('{card}').textContent.includes('one of ours')")
        assert (await listed(live))["anna"]["version"] == 2
        await page.click(f"{card} .delete")
        await page.click(f"{card} .sure")
        await page.until(f"!{CARDS}.includes('anna')")
        assert "anna" not in await listed(live)

    visit(browser, live.url, see)


def test_a_recording_becomes_a_voice_with_consent_alone(browser, live, tmp_path: Path):
    sample, noise = tmp_path / "me.wav", tmp_path / "noise.wav"
    sample.write_bytes(written(*spoken(SAID, tmp_path)))
    noise.write_bytes(b"no audio at all")

    async def see(page: Page) -> None:
        await opened(page)
        await page.click("#from-recording summary")
        await attach(page, "#voice-sample", noise)
        await write(page, "#voice-said", SAID)
        await write(page, "#from-recording .voice-name", "me")
        await page.click("#from-recording .save")
        assert await page.run("document.querySelector('#voice-agreed').matches(':invalid')")
        assert "me" not in await listed(live)
        await page.click("#voice-agreed")
        await page.click("#from-recording .save")
        await page.until("document.querySelector('#from-recording .error') !== null")
        await attach(page, "#voice-sample", sample)
        await page.click("#from-recording .save")
        await page.until(f"{CARDS}.includes('me')")
        assert (await listed(live))["me"]["origin"] == "upload"

    visit(browser, live.url, see)


def test_a_voice_that_a_dead_service_did_not_save_is_saved_later(browser, live):
    async def see(page: Page) -> None:
        await opened(page)
        await page.click("#from-seed summary")
        await write(page, "#voice-seed", "5")
        await write(page, "#from-seed .voice-name", "late")
        link.cut()
        await page.click("#from-seed .save")
        await page.until("document.querySelector('#from-seed .error')?.textContent.includes('does not answer')")
        link.restore()
        await page.click("#from-seed .error button")
        await page.until(f"{CARDS}.includes('late')")
        assert await page.run("document.querySelector('#from-seed .error')") is None

    with relay(live.port) as link:
        visit(browser, link.url, see)
