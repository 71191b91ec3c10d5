"""Dialogue, in a real browser: a script and its turns say the same, and what is heard are the API's bytes."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.text.markup.dialogue import read_script
from tests.support.browser import Page
from tests.support.demo_voice import demo_library, demo_speaker
from tests.support.fakes import Speaker, make_services, make_voices
from tests.support.live_server import Live, serving
from tests.support.relay import Relay, relay
from tests.support.studio import (
    AWAY,
    BACK,
    ERROR,
    FINISHED,
    PLAYED,
    choose,
    code_of,
    downloads,
    file_in,
    go_to,
    has_heard,
    minutes_later,
    unfold,
    visit,
    work,
    write,
)
from tests.support.waiting import until

pytestmark = pytest.mark.slow

VOICE = "voice-141"
STATE = "JSON.parse(sessionStorage.getItem('dialogue'))"
STATUS = "document.querySelector('#status').textContent"
NAMES = "[...document.querySelectorAll('#cast .name')].map(each => each.value).join()"
SCRIPT = "Anna: That was great.\nIt was my sister.\nBen: The green answer."
LOAD = "const load = name => import(new URL(name, document.querySelector('script[type=module]').src));"

SCRIPTS = [
    SCRIPT,
    "  Anna: Who?\n  Ben:\n  It is me.\n    Note: nobody else.\n\n\n  anna: Indented: yes.",
    "阿宝：你好。\n旁白: 10:30 到了\r\nA b c d: four words\nA b c d e: five words\n12: a number",
    "- Ben: no name yet\n**Ben** (quietly): You?\n- **Ben**: A bullet.\n1. Ben: A number.\n<Ben> Hello.\n【Ben】 你好。",
    '[Anna]: Brackets.\n"Cleo": Quotes.\n小雅（笑）：你好。\n* Anna: again\nAnna:without a space\nhttp://x',
    "\ufeffDr. O'Neil-Smith: It is 5:30.\nhttp://x\nA:b\n_x: y\nX_1: z\n Ben: moved in",
]
"""each with everybody whom the service would ask a cast for"""


def dialogue(live: Live, **fields: Any) -> requests.Response:
    return requests.post(f"{live.url}/v1/audio/dialogue", json={"response_format": "pcm", **fields}, timeout=600)


def body_of(seed: int, voice: str = "calm") -> dict[str, Any]:
    """What the page asks for the script above, as a person would write it."""
    anna = {"text": "That was great.\nIt was my sister.", "speaker": "Anna"}
    return {
        "turns": [{**anna, "voice": "default"}, {"text": "The green answer.", "speaker": "Ben", "voice": voice}],
        "seed": seed,
    }


def measured(live: Live, voice: str = "calm") -> None:
    """The loudness of the voices is known: no endless speaker is asked for it."""
    assert dialogue(live, **body_of(1, voice)).status_code == 200


async def opened(page: Page, voice: str = "calm") -> None:
    await go_to(page, "dialogue")
    await page.until("document.querySelector('#cast select').options.length > 1")
    await write(page, "#script", SCRIPT)
    await choose(page, "#cast li:nth-child(2) select", voice)
    await unfold(page)


def test_a_dialogue_is_heard_and_read_along_with_names(browser, tmp_path: Path):
    async def see(page: Page) -> None:
        await opened(page, VOICE)
        await write(page, "#dialogue-seed", "7")
        await page.press("Control+Enter")
        await page.until(FINISHED)
        await page.until(PLAYED)
        await has_heard(page, dialogue(live, **body_of(7, VOICE)).content)
        turns = "[...document.querySelectorAll('.turn')].map(each => each.textContent)"
        assert await page.run(turns) == ["Anna That was great.\nIt was my sister.", "Ben The green answer."]
        assert await page.run("document.querySelectorAll('.turn:last-child .word').length") == 3
        await page.click(".turn:last-child .word")
        await page.until("document.querySelector('.word.now')?.textContent === 'The'")
        # Files beside it.
        await downloads(page, tmp_path)
        name = "default-anna-that-was-great-it-7"
        await choose(page, "#download-format", "wav")
        await page.click("#stems")
        assert (
            await file_in(tmp_path, f"{name}.zip")
            == dialogue(live, **body_of(7, VOICE), stems=True, response_format="wav").content
        )
        await page.click("#vtt")
        shown = (await file_in(tmp_path, f"{name}.vtt")).decode()
        assert "<v Anna>That was great." in shown
        assert "<v Ben>The green answer." in shown
        await page.click("#download")
        assert await file_in(tmp_path, f"{name}.wav") == dialogue(live, **body_of(7, VOICE), response_format="wav").content

    library = demo_library()
    with demo_speaker(library=library) as speaker:
        speech = make_services(speaker, voice_id=library.canonical)
        with serving(replace(speech, voices=make_voices(speaker.stream, library))) as live:
            measured(live, VOICE)
            visit(browser, live.url, see, hears=True)


def test_turns_and_script_say_the_same_and_turns_have_their_own(browser):
    async def see(page: Page) -> None:
        await opened(page)
        await page.click("#view-turns")
        await page.until("document.querySelectorAll('#turns li').length === 2")
        # A third turn: the one who spoke before the last one says it.
        await page.click("#add-turn")
        assert await page.run("document.activeElement.matches('#turns li:nth-child(3) textarea')")
        await page.tab.keyboard.insert_text("Well:\nBen: said he")
        assert await page.run("document.querySelector('#turns li:nth-child(3) .speaker').value") == "Anna"
        assert await page.run(f"{STATE}.script") == f"{SCRIPT}\nAnna: Well:\n Ben: said he"
        await unfold(page)
        for number, value in ((2, "1.5"), (3, "9"), (4, "600")):
            await write(page, f"#turns li:nth-child(2) .row .field:nth-child({number}) input", value)
        # What is a turn's own stays with it: moved, and with the script written on.
        await page.click("#turns li:nth-child(2) .up")
        assert await page.run("document.activeElement.matches('#turns li:nth-child(1) textarea')")
        await page.click("#turns li:nth-child(3) .delete")
        await page.click("#view-script")
        text = await page.run("document.querySelector('#script').value")
        assert text == "Ben: The green answer.\nAnna: That was great.\nIt was my sister."
        await write(page, "#script", f"{text}\nCleo: Me too.")
        assert await page.run(NAMES) == "Ben,Anna,Cleo"
        await write(page, "#dialogue-seed", "4")
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        ben, anna = {"voice": "calm", "speed": 1.5, "seed": 9, "gap_ms": 600}, "That was great.\nIt was my sister."
        turns = [
            {"text": "The green answer.", "speaker": "Ben", **ben},
            {"text": anna, "speaker": "Anna", "voice": "default"},
            {"text": "Me too.", "speaker": "Cleo"},
        ]
        await has_heard(page, dialogue(live, turns=turns, seed=4).content)
        assert json.loads((await code_of(page, "curl")).split("-d '")[1][:-1]) == {
            "turns": turns,
            "seed": 4,
            "response_format": "mp3",
        }
        # A name that is changed is another one everywhere, and none is taken twice.
        await write(page, "#cast li:nth-child(3) .name", "ben")
        assert await page.run(NAMES) == "Ben,Anna,Cleo"
        await write(page, "#cast li:nth-child(3) .name", "Dora")
        assert (await page.run(f"{STATE}.script")).endswith("Dora: Me too.")
        # It is all there after a reload.
        await page.open(f"{live.url}/?again#/dialogue")
        await page.until(f"document.querySelector('#cast') && {NAMES} === 'Ben,Anna,Dora'")
        await page.click("#view-turns")
        await page.until("document.querySelector('#turns li .row .field:nth-child(4) input')?.value === '600'")

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see, hears=True)


def test_scripts_are_read_as_the_service_reads_them(browser):
    async def see(page: Page) -> None:
        for script in SCRIPTS:
            code = f"const {{turnsOf, scriptOf}} = await load('dialogue_script.js'), turns = turnsOf({json.dumps(script)});"
            turns, again = await page.run(f"(async () => {{ {LOAD} {code} return [turns, turnsOf(scriptOf(turns))]; }})()")
            assert [(said.speaker, said.text) for said in read_script(script, {turn["speaker"] for turn in turns})] == [
                (turn["speaker"], turn["text"]) for turn in turns
            ]
            assert again == turns, "and written again they are the same"
        narrated = await page.run(
            f"(async () => {{ {LOAD} return (await load('dialogue_script.js')).turnsOf('Once.\\nA: b'); }})()"
        )
        assert [turn["speaker"] for turn in narrated] == ["Narrator", "A"]

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_stop_frees_the_server_and_takes_know_the_dialogue(browser):
    speaker = Speaker()

    async def see(page: Page) -> None:
        await opened(page)
        await page.click("#go")
        await page.until("document.querySelector('#fact-length').textContent.endsWith(' s')")
        await page.click("#go")
        await until(lambda: speaker.closed == speaker.opened)
        await page.until(f"{STATUS} === 'Stopped.' && {ERROR} === ''")
        await work(page, "attempts")
        assert (
            await page.run("document.querySelector('#takes-list .title').textContent")
            == "Anna: That was great.\nIt was my sister."
        )
        assert await page.run("document.querySelector('#takes-list .use')") is None

    with serving(make_services(speaker)) as live:
        measured(live)
        speaker.chunks, speaker.pause_s = None, 0.02
        visit(browser, live.url, see)


async def cut_in_the_middle(page: Page, link: Relay) -> int:
    """Speaks the dialogue until something is heard, and loses the connection; the dialogue's seed."""
    await opened(page)
    await page.click("#go")
    await page.until("document.querySelector('#fact-length').textContent.endsWith(' s')")
    seed = int(await page.run("document.querySelector('#dialogue-seed').value"))
    await asyncio.to_thread(link.cut)
    await page.until(AWAY)
    return seed


def test_a_dialogue_goes_on_where_its_connection_was_lost(browser):
    async def see(page: Page) -> None:
        seed = await cut_in_the_middle(page, link)
        link.restore()
        await page.until(f"{FINISHED} && {PLAYED} && {ERROR} === ''")
        await has_heard(page, dialogue(live, **body_of(seed)).content)

    speaker = Speaker()
    with serving(make_services(speaker)) as live, relay(live.port) as link:
        measured(live)
        speaker.pause_s = 0.3
        visit(browser, link.url, see, hears=True)


def test_a_service_that_dies_in_the_middle_speaks_the_same_dialogue_later(browser):
    speaker = Speaker()

    async def see(page: Page) -> None:
        seed = await cut_in_the_middle(page, link)
        await minutes_later(page)
        await page.until(f"{ERROR}.includes('went away in the middle')")
        assert await page.run("document.querySelector('#stems').disabled")
        await page.click(".error button")
        await page.until(f"{ERROR}.includes('does not answer')")
        link.restore()
        await page.until(BACK)
        speaker.chunks, speaker.pause_s = 3, 0
        await page.run("window.heard = []; 0")
        await page.click(".error button")
        await page.until(f"{FINISHED} && {PLAYED} && {ERROR} === ''")
        await has_heard(page, dialogue(live, **body_of(seed)).content)
        # What is refused says why, in words.
        await write(page, "#cast li:nth-child(1) .row .field:nth-child(1) input", "9")
        await page.click("#go")
        await page.until(f"{ERROR}.includes('speed') && {ERROR}.includes('request ')")

    with serving(make_services(speaker)) as live, relay(live.port) as link:
        measured(live)
        speaker.chunks, speaker.pause_s = None, 0.05
        visit(browser, link.url, see, hears=True)
