"""Speak, in a real browser: what is heard are the API's bytes, and a key, a stop and a dead service are a person's everyday."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.store.open import open_store
from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from serve.config.app_config import LimitsConfig
from tests.support.browser import Page
from tests.support.demo_voice import demo_speaker
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, ring_of
from tests.support.live_server import serving
from tests.support.relay import relay
from tests.support.services import needed_program
from tests.support.studio import (
    AWAY,
    BACK,
    ERROR,
    FINISHED,
    FIRST_TEXT,
    PLAYED,
    WORDS,
    choose,
    code_of,
    downloads,
    file_in,
    has_heard,
    minutes_later,
    open_studio,
    unfold,
    visit,
    write,
)
from tests.support.waiting import until

pytestmark = pytest.mark.slow

VOICES = "document.querySelector('#language').options.length"
WAITING = "() => waits.push(document.querySelector('.error button[disabled]')?.textContent)"
WATCHED = "{subtree: true, childList: true, attributes: true}"
ASKED = "!document.querySelector('#ask').hidden"
STATUS = "document.querySelector('#status').textContent"
SEED = "document.querySelector('#seed').value"


def text_of(selector: str) -> str:
    return f"document.querySelector({selector!r}).textContent"


def test_what_is_heard_are_the_samples_of_the_api(browser):
    async def see(page: Page) -> None:
        await page.until(f"{VOICES} > 1")
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        seed = int(await page.run(SEED))
        spoken = live.speak(input=FIRST_TEXT, seed=seed).content
        await has_heard(page, spoken)
        assert (await page.run(text_of("#fact-first"))).endswith(" s")
        assert await page.run(text_of("#fact-length")) == "1.00 s"
        assert await page.run(text_of("#fact-seed")) == str(seed)
        assert page.problems == []

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see, hears=True)


def test_the_demo_voice_is_heard_and_read_along(browser):
    async def see(page: Page) -> None:
        await unfold(page)
        await write(page, "#seed", "7")
        await page.press("Control+Enter")
        await page.until(f"{FINISHED} && {PLAYED}")
        body = live.speak(input=FIRST_TEXT, seed=7, stream=False, timestamps="word").json()
        await has_heard(page, live.speak(input=FIRST_TEXT, seed=7).content)
        assert await page.run(WORDS) == [word["text"] for word in body["words"]]
        assert (await page.run(text_of("#read-along"))).strip("\u200b") == FIRST_TEXT
        place = "Number(document.querySelector('#wave').getAttribute('aria-valuenow'))"
        # From the text to the sound: a click while it plays ...
        await page.click("#play")
        box = await page.run(
            "(({x, y, height}) => [x + 3, y + height / 2])(document.querySelectorAll('.word')[3].getBoundingClientRect())"
        )
        await page.tab.mouse.click(*box)
        await page.until("document.querySelector('.word.now') === document.querySelectorAll('.word')[3]")
        assert await page.run(place) >= round(body["words"][3]["start"], 1) - 0.05
        # ... and from the sound to the text.
        await page.press("Escape")
        await page.run("document.querySelector('#wave').focus()")
        await page.press("End")
        await page.until(f"document.querySelectorAll('.word')[{len(body['words']) - 1}].classList.contains('now')")
        # What is edited is no longer what is heard.
        await page.click("#play")
        await page.run("document.querySelector('#input').focus()")
        await page.tab.keyboard.insert_text("!")
        await page.until(f"{PLAYED} && document.querySelector('.word') === null")

    patient = LimitsConfig(first_audio_timeout_s=120)
    with demo_speaker() as speaker, serving(make_services(speaker, patient)) as live:
        visit(browser, live.url, see, hears=True)


def test_stop_frees_the_server(browser):
    speaker = Speaker(chunks=None, pause_s=0.02)

    async def see(page: Page) -> None:
        await page.click("#go")
        await page.until(f"{text_of('#fact-length')}.endsWith(' s')")
        await page.click("#go")
        await until(lambda: speaker.closed == speaker.opened == 1)
        await page.until(f"{STATUS} === 'Stopped.' && {PLAYED}")
        assert await page.run(ERROR) == ""
        await page.click("#go")
        await page.until(f"{STATUS} === 'Speaking …'")
        await page.press("Escape")
        await until(lambda: speaker.closed == speaker.opened == 2)

    with serving(make_services(speaker)) as live:
        visit(browser, live.url, see)


def test_sound_that_comes_too_late_is_counted_and_lost_nowhere(browser):
    async def see(page: Page) -> None:
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        assert int(await page.run(text_of("#fact-dry"))) >= 1
        spoken = live.speak(input=FIRST_TEXT, seed=int(await page.run(SEED))).content
        await has_heard(page, spoken)

    # Each chunk lasts 200 ms and takes longer than that to come, on any machine.
    with serving(make_services(Speaker(chunks=3, pause_s=0.6))) as live:
        visit(browser, live.url, see, hears=True)


@pytest.mark.parametrize(
    "lacking",
    [
        "Object.defineProperty(BaseAudioContext.prototype, 'audioWorklet', {get: () => undefined}); 0",
        "AudioWorklet.prototype.addModule = () => Promise.reject(new DOMException('no connection', 'AbortError')); 0",
    ],
    ids=["the browser has none", "its file cannot be loaded"],
)
def test_without_worklets_it_plays_all_the_same(browser, lacking: str):
    async def see(page: Page) -> None:
        await page.run(lacking)
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        assert await page.run(text_of("#time")) == "0:01 / 0:01"

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_the_first_sound_needs_no_connection_for_the_worklet(browser):
    async def see(page: Page) -> None:
        await page.until(
            "performance.getEntriesByType('resource').some(one => one.name.includes('worklet') && one.responseEnd)"
        )
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        request = (
            "performance.getEntriesByType('resource').filter(one => one.name.includes('worklet')).map(one => one.transferSize)"
        )
        assert [size > 0 for size in await page.run(request)].count(True) == 1

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_what_is_not_spoken_is_shown_with_the_languages(browser):
    async def stream(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        lost = () if request.text == "Hello." else (("emoji", 2), ("unknown_to_model", 7))
        async with aclosing(Speaker().stream(request)) as chunks:
            async for chunk in chunks:
                yield replace(chunk, warnings=() if chunk.first_sample else lost)

    async def see(page: Page) -> None:
        await page.until("[...document.querySelector('#language').options].map(each => each.value).join() === 'auto,zh,en'")
        for text, shown in (("Hello 世界.", "emoji: 2, unknown to model: 7"), ("Hello.", "nothing")):
            await write(page, "#input", text)
            await page.click("#go")
            await page.until(f"{FINISHED} && {text_of('#fact-warnings')} === {json.dumps(shown)}")

    with serving(make_services(Speaker(), stream=stream)) as live:
        visit(browser, live.url, see)


def test_a_take_is_saved_in_every_format_with_the_bytes_of_the_api(browser, tmp_path: Path):
    async def see(page: Page) -> None:
        await downloads(page, tmp_path)
        await unfold(page)
        await write(page, "#seed", "11")
        await page.click("#go")
        await page.until(FINISHED)
        for container in ("mp3", "wav", "opus", "aac", "flac", "pcm"):
            await choose(page, "#download-format", container)
            await page.click("#download")
            saved = await file_in(tmp_path, f"default-hello-there-this-sentence-is-11.{container}")
            assert saved == live.speak(input=FIRST_TEXT, seed=11, response_format=container).content

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_the_shown_code_gets_the_same_bytes(browser, tmp_path: Path):
    needed_program("curl", "curl")
    text = 'It\'s "5 > 4" & \\ $HOME,\n你好 😀.'

    async def see(page: Page) -> None:
        await write(page, "#input", text)
        await unfold(page)
        await write(page, "#seed", "12")
        await page.click("#go")
        await page.until(FINISHED)  # before, there is nothing to download and no format to choose
        await choose(page, "#download-format", "wav")
        codes.extend([await code_of(page, kind) for kind in ("curl", "python", "openai", "elevenlabs")])

    codes: list[str] = []
    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)
        spoken = live.speak(input=text, seed=12, response_format="wav").content
        for command in (["sh", "-c", codes[0]], *([sys.executable, "-c", code] for code in codes[1:])):
            subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
            (file,) = tmp_path.iterdir()
            if file.suffix == ".mp3":  # ElevenLabs' client has no format for this file
                assert file.read_bytes()[:2] in (b"\xff\xfb", b"ID")
            else:
                assert file.name == "it-s-5-4-home-12.wav"
                assert file.read_bytes() == spoken
            file.unlink()


def test_a_service_with_keys_is_spoken_to_with_the_key_of_the_tab(browser, tmp_path: Path):
    store = open_store(str(tmp_path / "store.sqlite"))
    key, _ = add(store, scopes=(Scope.SPEECH, Scope.VOICES))
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))

    async def see(page: Page) -> None:
        # The list of voices was refused: one sentence asks for a key before anything was tried.
        await page.until(f"{ASKED} && {VOICES} === 1")
        await page.click("#go")
        await page.until(f"{ERROR}.startsWith('This service asks for a key.')")
        assert "X-Vapi-Secret" not in await page.run("document.body.innerText")
        # With the key it goes on by itself.
        await page.type("key", f" {key} ")
        await page.until(f"{FINISHED} && {ERROR} === '' && {VOICES} > 1 && !({ASKED})")
        assert key not in await code_of(page, "curl")
        # The tab remembers it, and nothing that outlives the tab or leaves it.
        await open_studio(page, f"{live.url}/?again=")
        assert await page.run("document.querySelector('#key').value") == key
        await page.until(f"{VOICES} > 1")
        stored = await page.run("JSON.stringify([document.cookie, {...localStorage}, location.href])")
        assert key not in stored
        await page.click("#gear")
        await page.click("#change-key")
        await page.type("key", "x")
        await page.click("#go")
        await page.until(f"{ERROR}.includes('no such key')")
        assert key not in await page.run("document.body.innerText")

    try:
        with serving(services) as live:
            visit(browser, live.url, see)
    finally:
        store.close()


def test_a_service_that_dies_in_the_middle_is_named_and_found_again(browser):
    speaker = Speaker(chunks=None, pause_s=0.05)

    async def see(page: Page) -> None:
        await write(page, "#input", "What I wrote.")
        await page.click("#go")
        await page.until(f"{text_of('#fact-length')}.endsWith(' s')")
        seed = await page.run(SEED)
        await asyncio.to_thread(link.cut)
        await page.until(AWAY)
        assert (await page.run(STATUS), await page.run(ERROR)) == ("Speaking …", ""), "it waits"
        await minutes_later(page)
        await page.until(f"{ERROR}.includes('went away in the middle')")
        # What has arrived is still there, and so is the form.
        assert await page.run("Number(document.querySelector('#wave').getAttribute('aria-valuemax'))") > 0
        await page.click(".error button")
        await page.until(f"{ERROR}.includes('does not answer')")
        link.restore()
        await page.until(BACK)
        speaker.chunks, speaker.pause_s = 3, 0
        await page.click(".error button")
        await page.until(f"{FINISHED} && {ERROR} === ''")
        assert await page.run("document.querySelector('#input').value") == "What I wrote."
        assert (await page.run(text_of("#fact-seed"))) == seed, "the same request again"

    with serving(make_services(speaker)) as live, relay(live.port) as link:
        visit(browser, link.url, see)


def test_a_service_without_room_is_asked_again_when_it_says(browser):
    async def see(page: Page) -> None:
        reader = await asyncio.to_thread(live.connect, b'{"input": "Long.", "response_format": "pcm"}')
        await until(lambda: speaker.opened == 1)
        # It lasts a second, which may be over before the next question.
        await page.run(f"window.waits = []; new MutationObserver({WAITING}).observe(document.body, {WATCHED})")
        await page.click("#go")
        await page.until(f"{ERROR}.includes('is busy') && waits.some(text => /Speak again \\(\\d+ s\\)/.test(text))")
        reader.close()
        await until(lambda: speaker.closed == 1)
        speaker.chunks = 2
        await page.until("!document.querySelector('.error button').disabled")
        await page.click(".error button")
        await page.until(f"{FINISHED} && {ERROR} === ''")

    speaker = Speaker(chunks=None, pause_s=0.02)
    with serving(make_services(speaker, LimitsConfig(max_in_flight=1))) as live:
        visit(browser, live.url, see)


def test_an_error_of_the_service_says_what_to_do(browser):
    async def see(page: Page) -> None:
        await unfold(page)
        await write(page, "#seed", "seven")
        await page.click("#go")
        await page.until(f"{ERROR}.includes('seed') && {ERROR}.includes('request ')")
        await unfold(page)
        await write(page, "#seed", "7")
        await page.click("#go")
        await page.until(f"{FINISHED} && {ERROR} === ''")

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


# The page's modules by themselves, in the browser that runs them: the ring, the recording, the files' names.


IMPORT = "const at = document.querySelector('script[type=module]').src;"


@pytest.fixture
def run_in(browser):
    """Runs the body of an async function in the page, with `load(name)` for its modules; returns what it returns."""

    def run(script: str):
        found = []

        async def see(page: Page) -> None:
            load = f"{IMPORT} const load = name => import(new URL(name, at));"
            found.append(await page.run(f"(async () => {{ {load} {script} }})()"))

        with serving(make_services(Speaker())) as live:
            visit(browser, live.url, see)
        return found[0]

    return run


def test_the_ring_gives_back_what_it_got_in_any_pieces(run_in):
    script = """
      const {Ring} = await load("ring.js"), ring = new Ring(1000, 0), out = [];
      let next = 1, state = 7;
      const random = most => (state = state * 16807 % 2147483647) % most;
      while (next < 20000 || ring.waiting) {
        if (next < 20000) ring.push(Float32Array.from({length: Math.min(random(400), 1000 - ring.waiting)}, () => next++));
        else ring.end();
        const before = ring.played, block = ring.pull(new Float32Array(1 + random(300)));
        out.push(...block.subarray(0, ring.played - before));
        if (block.subarray(ring.played - before).some(one => one !== 0)) return "noise";
      }
      return [out.length === next - 1, out.every((one, at) => one === at + 1), ring.isOver];
    """
    assert run_in(script) == [True, True, True]


def test_the_ring_counts_each_time_it_runs_dry_and_waits_for_a_lead(run_in):
    script = """
      const {Ring} = await load("ring.js"), ring = new Ring(1000, 20), ones = count => new Float32Array(count).fill(1);
      const told = [], pull = count => { ring.pull(new Float32Array(count)); told.push([ring.played, ring.underruns]); };
      ring.push(ones(10)); pull(8); ring.push(ones(10)); pull(8); pull(30); pull(8);
      ring.push(ones(5)); ring.end(); pull(8); pull(8);
      let error = null;
      try { ring.push(ones(1001)); } catch (thrown) { error = thrown.name; }
      return [told, error];
    """
    assert run_in(script) == [[[0, 0], [8, 0], [20, 1], [20, 1], [25, 1], [25, 1]], "RangeError"]


def test_a_word_is_found_by_its_first_sample(run_in):
    script = """
      const {Recording, RATE} = await load("recording.js"), recording = new Recording({title: ""});
      recording.addWords([{start: 0.1}, {start: 0.666667}, {start: 1.2}]);
      return [0, 0.1, 0.6, 16000 / RATE, 9].map(time => recording.wordAt(time));
    """
    assert run_in(script) == [-1, 0, 0, 1, 2]


def test_a_file_is_named_after_what_it_is(run_in):
    script = """
      const {fileName} = await load("share.js");
      const name = (input, facts) => fileName({title: input, body: {input}, facts}, "mp3");
      return [name("Héllo, wörld 5!", {voice: "anna@2", seed: "7"}), name("你好。 <b>/../x</b>", {}), name("...", {})];
    """
    assert run_in(script) == ["anna-héllo-wörld-5-7.mp3", "你好-x.mp3", "speech.mp3"]
