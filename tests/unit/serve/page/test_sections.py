"""Voices: found, heard, used, mixed, made from a seed and a recording, changed and deleted."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.store.open import open_store
from pipeline.store.store import Store
from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from tests.support.browser import Page
from tests.support.fakes import FakeStatus, Speaker, make_services
from tests.support.guarded import add, guarded, ring_of, speak
from tests.support.live_server import Live, serving
from tests.support.recordings import SAID, spoken, written
from tests.support.relay import relay
from tests.support.studio import AWAY, BACK, ERROR, FINISHED, PLAYED, attach, go_to, minutes_later, unfold, visit, work, write
from tests.support.voice_routes import voice_server, voices
from tests.support.waiting import until

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


# Takes: several seeds at once, keep one; and the history of the tab.


ATTEMPT_CARDS = "[...document.querySelectorAll('.take')]"
DONE = f"{ATTEMPT_CARDS}.every(card => !card.textContent.includes('…'))"
TAKEN = "Voice of the service"  # nobody was measured
ABOUT = f"{ATTEMPT_CARDS}.map(card => card.querySelector('.figures').textContent)"


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
        await page.until(f"{ATTEMPT_CARDS}.length === 3 && {DONE}")
        assert sorted(await page.run(ABOUT)) == [f"seed {seed} · {TAKEN} · 1.00 s" for seed in (100, 101, 102)]
        await page.click(".take:nth-child(2) .play")
        await page.until(PLAYED)
        await page.click(".take:nth-child(2) .keep")
        await page.until(f"{ATTEMPT_CARDS}.length === 1")
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
        assert await page.run(f"{ATTEMPT_CARDS}.map(card => card.querySelector('.title').textContent)") == ["Second.", "First."]
        await page.click(".take:nth-child(2) .play")
        await page.until("document.querySelector('#playing').textContent === 'First.'")
        await page.click(".take:nth-child(2) .use")
        assert await page.run("document.querySelector('#work-text').value") == "First."
        await page.click(".take:nth-child(1) .copy")
        await page.until("document.querySelector('.take .copy').dataset.said")
        await page.click(".take:nth-child(1) .delete")
        await page.until(f"{ATTEMPT_CARDS}.length === 1")
        await page.click("#delete-all")
        await page.until(f"{ATTEMPT_CARDS}.length === 0 && document.body.textContent.includes('Nothing was spoken')")

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
        await page.until(f"{ATTEMPT_CARDS}.every(card => card.textContent.includes('went away in the middle'))")
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


# The operator's status: figures that live, and only for a key that may see them.


TEXT = "document.querySelector('#status-shown').innerText"


def tile(name: str) -> str:
    return f"[...document.querySelectorAll('.tiles dt')].find(each => each.textContent === {name!r})?.nextSibling.textContent"


@dataclass
class BusyStatus(FakeStatus):
    """The state of a service with two acoustic replicas, as serve/ingress/ingress_status.py tells it."""

    changes: dict[str, Any] = field(default_factory=dict)

    async def health(self) -> dict[str, object]:
        engine = {
            "slots": 8,
            "slots_usable": 6,
            "waiting": 2,
            "round_s": 0.0123,
            "gpus": [],
            "trouble": "",
            "gpu_mem_percent": 41.0,
        }
        acoustic = [{"replica": f"a{index}", "slots_used": index, **engine} for index in (1, 2)]
        version = {"share": 1.0, "state": "in_service", "requests": 3, "failed": 0, "first_audio_s": 0.31}
        cache = {"memory_hits": 6, "shared_hits": 1, "joined": 1, "misses": 2}
        return {
            "cache": cache,
            "stores": {},
            "text": [{"replica": "t1", "trouble": "", "waiting": 0}],
            "acoustic": acoustic,
            "vocoder": [{"replica": "v1", "trouble": "", "waiting": 0, "call_s": 0.004}],
            "breakers": {"acoustic": {"state": "closed"}},
            "quarantine": {"quarantined": 0, "refused": 0},
            "degrade": {"level": 1, "active_steps": ["no_refine"]},
            "versions": {"chattts@v1": version},
            **self.changes,
        }


def test_an_operator_sees_the_service_live(browser, store: Store):
    admin, _ = add(store, scopes=tuple(Scope))
    speaker = Speaker()
    status = BusyStatus(speaker)
    dashboards = {"ray_dashboard": "http://127.0.0.1:8265/", "grafana": "https://grafana.example/d/chattts"}
    services = replace(
        make_services(speaker), status=status, dashboards=dashboards, authenticator=Authenticator(ring_of(store))
    )

    async def see(page: Page) -> None:
        await work(page, "status")
        await page.until(f"{ERROR}.includes('asks for a key')")
        await page.type("key", admin)
        await page.until(f"{tile('slots in use')} === '3 of 12 (16)'")
        assert await page.run(tile("waiting for a slot")) == "4"
        assert await page.run(tile("found in the cache")) == "80 % of 10"
        assert await page.run(tile("degradation")) == "level 1: no_refine"
        assert await page.run(tile("first audio")) == "–"
        assert "No trouble." in await page.run(TEXT)
        links = await page.run("[...document.querySelectorAll('#dashboards a')].map(link => link.href)")
        assert links == list(dashboards.values())
        # It lives: what happens is seen without a click.
        await asyncio.to_thread(speak, live, **{"X-API-Key": admin})
        nobody = {"input": "Hello.", "voice": "nobody"}
        await asyncio.to_thread(requests.post, f"{live.url}/v1/audio/speech", json=nobody, headers={"X-API-Key": admin})
        status.changes = {"stores": {"keys": "the store is away"}}
        await page.until(f"{tile('first audio')}.endsWith(' s') && {TEXT}.includes('voice_not_found')")
        await page.until(f"{TEXT}.includes('keys: the store is away')")
        assert all("401" in problem for problem in page.problems), page.problems

    with serving(services) as live:
        visit(browser, live.url, see)


def test_a_key_without_the_scope_sees_nothing(browser, tmp_path: Path):
    store = open_store(str(tmp_path / "store.sqlite"))
    small, _ = add(store, scopes=(Scope.SPEECH,))
    admin, _ = add(store, scopes=(Scope.ADMIN,))
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))

    async def see(page: Page) -> None:
        await work(page, "status")
        await page.until(f"{ERROR}.includes('asks for a key')")
        await page.type("key", small)
        await page.until(f"{ERROR}.includes('may not do this')")
        assert await page.run(TEXT) == ""
        await page.click("#gear")
        await page.click("#change-key")
        await page.run("document.getElementById('key').value = ''")
        await page.type("key", admin)
        await page.click("#read-status")
        await page.until(f"{ERROR} === '' && {TEXT}.includes('chattts-serve')")

    try:
        with serving(services) as live:
            visit(browser, live.url, see)
    finally:
        store.close()


def test_a_service_that_went_away_is_watched_again(browser, store: Store):
    admin, _ = add(store, scopes=tuple(Scope))

    async def see(page: Page) -> None:
        await page.until("!document.querySelector('#ask').hidden")
        await page.type("key", admin)
        await work(page, "status")
        await page.until(f"{TEXT}.includes('chattts-serve')")
        link.cut()
        await page.until(f"{ERROR}.includes('does not answer')")
        link.restore()
        await page.until(f"{ERROR} === ''")

    with guarded(Authenticator(ring_of(store))) as live, relay(live.port) as link:
        visit(browser, link.url, see)
