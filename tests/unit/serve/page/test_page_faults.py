"""Faults that people found in the page, each once more, in a real browser; and the way of a newcomer."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.idempotency import Idempotency
from serve.access.resume_tokens import ResumeTokens
from serve.config.app_config import LimitsConfig
from serve.speech.resuming import Resuming
from tests.support.browser import Page
from tests.support.demo_voice import demo_speaker
from tests.support.fakes import Speaker, make_services
from tests.support.jobs import living
from tests.support.live_server import serving
from tests.support.relay import relay
from tests.support.studio import (
    AWAY,
    ERROR,
    FINISHED,
    FIRST_TEXT,
    PLAYED,
    WORDS,
    attach,
    code_of,
    go_to,
    has_heard,
    open_in,
    people,
    unfold,
    visit,
    work,
    write,
)

pytestmark = pytest.mark.slow

LABEL = "document.querySelector('#go').ariaLabel"
NOTICE = "document.querySelector('#notice').className"
BOX = "(box => [box.top, box.bottom])(document.querySelector({!r}).getBoundingClientRect())"
SEEN = "[...document.querySelectorAll({!r})].filter(each => each.checkVisibility({{visibilityProperty: true}}))"
SMALL = """[...document.querySelectorAll('button, a, input, select, summary, textarea')]
  .filter(each => each.checkVisibility() && !each.matches('.hidden, p > a')).filter(each => {
    const target = each.matches('[type=checkbox]') ? each.closest('label') ?? each : each;
    const {width, height} = target.getBoundingClientRect();
    return width < 24 || height < 24;
  }).map(each => each.outerHTML.slice(0, 120))"""


class Restarting:
    """A service whose balancer finds no application for a while, as during a restart."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.is_away = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = {"message": "no application is deployed under this path", "code": "not_found", "request_id": "r"}
        reply: ASGIApp = JSONResponse({"error": message}, 404) if self.is_away else self.app
        await reply(scope, receive, send)


def test_p1_a_restart_is_one_banner_and_the_speech_goes_on(browser):
    around: list[Restarting] = []

    def wrap(app: ASGIApp) -> ASGIApp:
        around.append(Restarting(app))
        return around[0]

    async def see(page: Page) -> None:
        await page.click("#go")
        await page.until("document.querySelector('#fact-length').textContent.endsWith(' s')")
        seed = int(await page.run("document.querySelector('#seed').value"))
        around[0].is_away = True
        await asyncio.to_thread(link.cut)
        await page.until(f"{NOTICE} === 'away'")
        link.restore()
        await page.until(f"{NOTICE} === 'starting'")
        assert await page.run(ERROR) == ""
        around[0].is_away = False
        await page.until(f"{FINISHED} && {PLAYED} && ['back', ''].includes({NOTICE}) && {ERROR} === ''")
        await has_heard(page, live.speak(input=FIRST_TEXT, seed=seed).content)

    speaker = Speaker(chunks=8, pause_s=0.4)
    with serving(make_services(speaker), wrap=wrap) as live, relay(live.port) as link:
        visit(browser, link.url, see, hears=True)


def test_p2_the_player_covers_no_error_on_a_phone(browser):
    async def see(page: Page) -> None:
        await page.look(width=390, height=700)
        await page.click("#go")
        await page.until(FINISHED)
        await unfold(page)
        await write(page, "#seed", "seven")
        await page.click("#go")
        await page.until("document.querySelector('.error') !== null")
        (_, bottom), (top, _) = [await page.run(BOX.format(each)) for each in (".error", "#player")]
        assert bottom <= top

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_p3_p4_speakers_are_different_people_and_another_text_is_not_read_along(browser):
    async def see(page: Page) -> None:
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        await go_to(page, "dialogue")
        await page.until("[...document.querySelectorAll('#cast select')].every(each => each.value)")
        await write(page, "#script", "Anna: One.\nBen: Two.\nCleo: Three.")
        voices = await page.run("[...document.querySelectorAll('#cast select')].map(each => each.value)")
        assert len(set(voices)) == 3
        assert await page.run(f"{SEEN.format('.read .word')}.length") == 0

    with people(Speaker()) as live:
        visit(browser, live.url, see)


def test_p5_p6_a_long_text_becomes_a_book_and_an_empty_one_is_not_spoken(browser):
    async def see(page: Page) -> None:
        disabled = "document.querySelector('#go').disabled"
        await page.until(f"!{disabled}")
        await write(page, "#input", " ")
        await page.until(disabled)
        await page.press("Control+Enter")
        await write(page, "#input", "word " * 20)
        await page.until(f"{disabled} && document.querySelector('#count').textContent.startsWith('100 of 80 ')")
        assert await page.run(ERROR) == ""
        await page.click("#as-book")
        await page.until("document.querySelector('#book-name')?.textContent === 'text.txt'")

    speaker = Speaker()
    with serving(make_services(speaker, LimitsConfig(max_text_chars=80))) as live:
        visit(browser, live.url, see)
    assert speaker.opened == 0


def test_p7_p8_lengths_agree_and_one_download_is_the_book(browser, tmp_path: Path):
    async def see(page: Page) -> None:
        await go_to(page, "book")
        book = tmp_path / "book.txt"
        book.write_text("\n\n".join(f"This is part {number}." for number in range(9)))
        await attach(page, "#book-file", book)
        await page.click("#start")
        await page.until("document.querySelector('#job-status').textContent === 'succeeded'")
        await page.until("document.querySelectorAll('.word').length === 9")
        shown = await page.run("document.querySelector('#fact-job-length').textContent")
        clock = await page.run("document.querySelector('#time').textContent")
        assert int(clock[-2:]) == int(shown.removesuffix(" s"))
        names = f"{SEEN.format('button')}.map(each => each.ariaLabel ?? each.textContent)"
        assert [name for name in await page.run(names) if "Download" in name] == ["Download the book"]

    with living(tmp_path / "jobs") as live:
        visit(browser, live.url, see)


def test_p9_p10_what_is_left_out_is_called_so_and_the_plan_has_no_setting_of_the_speech(browser):
    async def see(page: Page) -> None:
        assert "left out" in await page.run("document.querySelector('#player dl').textContent")
        await work(page, "plan")
        assert await page.run("document.querySelectorAll('main :is(input, select)').length") == 0

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_p11_everything_is_large_enough_for_a_finger(browser):
    async def see(page: Page) -> None:
        await page.look(width=390, height=844)
        for place in ("speak", "dialogue", "book", "voices", "workshop"):
            await go_to(page, place)
            await unfold(page)
            assert await page.run(SMALL) == [], place
        await page.click("#gear")
        assert await page.run(SMALL) == []

    with people(Speaker()) as live:
        visit(browser, live.url, see)


@pytest.mark.parametrize(("language", "sound"), [("en", "middle"), ("zh", "中音")])
def test_a_newcomer_hears_a_chosen_voice_in_three_actions_and_shares_it_in_five(browser, language, sound):
    async def see(page: Page) -> None:
        await open_in(page, live.url, language)
        await page.until("document.querySelector('.person small')?.textContent.includes(' · ')")
        await page.run("navigator.clipboard.writeText = async text => { window.copied = text; }; 0")
        await page.click(".person")
        await page.tab.locator(".who", has_text=sound).first.click()
        await page.click("#go")
        await page.until("!document.querySelector('#download').disabled")
        request = spoken()[-1]
        assert request.voice.startswith("voice-")
        await page.click("#share")
        await page.click("#download")
        link = await page.run("window.copied")
        # Whoever opens the link hears the same samples.
        await page.run("sessionStorage.clear()")
        await page.tab.goto("about:blank")
        await page.open(link)
        await page.until("document.querySelector('.person small')?.textContent.includes(' · ')")
        await page.click("#go")
        await page.until("!document.querySelector('#download').disabled")
        again = spoken()[-1]
        assert (again.text, again.voice, again.sampling) == (request.text, request.voice, request.sampling)

    def spoken() -> list[SynthesisRequest]:
        """The requests but those for a voice's sample, which the pointer asks for on its way."""
        return [request for request in speaker.requests if "this is my voice" not in request.text]

    speaker = Speaker()
    with people(speaker) as live:
        visit(browser, live.url, see)


def test_one_press_of_an_example_is_heard(browser):
    async def see(page: Page) -> None:
        await page.click(".chip:nth-child(2)")
        await page.until(f"{FINISHED} && {PLAYED}")
        assert speaker.requests[-1].text.startswith("今天")
        await page.click(".chip:last-child")
        await page.until(f"location.hash === '#/dialogue' && {FINISHED}")

    speaker = Speaker()
    with people(speaker) as live:
        visit(browser, live.url, see)


def test_hasty_hands_do_what_they_mean(browser):
    async def see(page: Page) -> None:
        await page.tab.dblclick("#go")
        await page.until(f"{LABEL} === 'Stop' && document.querySelector('#fact-length').textContent.endsWith(' s')")
        await page.tab.keyboard.down("Control")
        for _ in range(2):  # the second is the keyboard's own repetition
            await page.tab.keyboard.down("Enter")
        await page.tab.keyboard.up("Enter")
        await page.tab.keyboard.up("Control")
        await page.until(f"{LABEL} === 'Speak'")
        # What speaks is stopped from every place, also from one that has no text of its own.
        await page.click("#go")
        for place in ("dialogue", "voices", "workshop", "book"):
            await page.run(f"location.hash = '#/{place}'")
        await page.until("document.querySelector('#book-file') !== null")
        assert await page.run("document.querySelector('nav a[aria-current]').hash") == "#/book"
        await page.click("#go")
        await page.until("document.querySelector('#go').hidden")
        assert page.problems == []

    speaker = Speaker(chunks=None, pause_s=0.02)
    with people(speaker) as live:
        visit(browser, live.url, see)
    assert speaker.closed == speaker.opened == 2


@pytest.mark.parametrize(
    ("fragment", "body"),
    [
        ("voice=alloy&text=Hi&seed=0", {"voice": "alloy", "seed": 0}),
        ("text=Hi&speed=fast&temperature=&toString=1&__proto__=2&refine=perhaps&seed=5", {"seed": 5}),
        ("text=Hi&speed=1.5&lexicon=&locked=&seed=7&input=x", {"speed": 1.5, "seed": 7}),
    ],
)
def test_a_link_with_odd_values_is_read_as_far_as_it_goes(browser, fragment: str, body: dict[str, Any]):
    async def see(page: Page) -> None:
        await page.tab.goto("about:blank")
        await page.open(f"{live.url}/#{fragment}")
        await page.until("location.hash === '#/speak' && !document.querySelector('#go').disabled")
        code = await code_of(page, "curl")
        assert json.loads(code.partition("-d '")[2].rstrip("'")) == {"input": "Hi", "response_format": "mp3", **body}
        assert page.problems == []

    with people(Speaker()) as live:
        visit(browser, live.url, see)


def test_an_error_is_seen_where_one_is_and_text_has_its_own_direction(browser):
    directions = "['#input', '#read-along'].map(each => getComputedStyle(document.querySelector(each)).direction)"

    async def see(page: Page) -> None:
        await write(page, "#input", "שלום עולם")
        assert await page.run(directions) == ["rtl", "rtl"]
        await unfold(page)
        await write(page, "#seed", "seven")
        await go_to(page, "voices")
        await page.click("#go")
        await page.until(f"{SEEN.format('main .error')}.length === 1")

    with people(Speaker()) as live:
        visit(browser, live.url, see)


# Resuming, in a real browser: a lost connection is a pause at most, and what is heard are the API's bytes all the same.


LENGTH = "(parseFloat(document.querySelector('#fact-length').textContent) || 0)"


def test_after_every_loss_it_goes_on_where_it_was(browser):
    async def see(page: Page) -> None:
        await unfold(page)
        await write(page, "#seed", "7")
        await page.click("#go")
        for _ in range(2):
            length = await page.run(LENGTH)
            await page.until(f"{LENGTH} > {length}")
            await asyncio.to_thread(link.cut)
            await page.until(AWAY)
            link.restore()
        await page.until(f"{FINISHED} && {PLAYED} && {ERROR} === ''")
        assert speaker.opened == 3
        await has_heard(page, live.speak(input=FIRST_TEXT, seed=7).content)

    speaker = Speaker(chunks=8, pause_s=0.4)
    with serving(make_services(speaker)) as live, relay(live.port) as link:
        visit(browser, link.url, see, hears=True)


def test_words_come_once_though_their_reply_began_again(browser):
    async def slowly(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        async with aclosing(speaker.stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk
                await asyncio.sleep(0.3)

    async def see(page: Page) -> None:
        await unfold(page)
        await write(page, "#seed", "7")
        await page.click("#go")
        await page.until(f"{WORDS}.length > 2")
        await asyncio.to_thread(link.cut)
        await page.until(AWAY)
        link.restore()
        await page.until(f"{FINISHED} && {PLAYED} && {ERROR} === ''")
        body = live.speak(input=FIRST_TEXT, seed=7, stream=False, timestamps="word").json()
        assert await page.run(WORDS) == [word["text"] for word in body["words"]]
        await has_heard(page, live.speak(input=FIRST_TEXT, seed=7).content)

    patient = LimitsConfig(first_audio_timeout_s=120)
    with (
        demo_speaker() as speaker,
        serving(make_services(speaker, patient, stream=slowly)) as live,
        relay(live.port) as link,
    ):
        visit(browser, link.url, see, hears=True)


def test_a_service_that_would_go_on_differently_says_so(browser):
    async def see(page: Page) -> None:
        await page.click("#go")
        await page.until(f"{LENGTH} > 0")
        await asyncio.to_thread(link.cut)
        build.append("another build")
        link.restore()
        await page.until(f"{ERROR}.includes('resume_changed')")
        speaker.chunks = 2
        await page.click(".error button")
        await page.until(f"{FINISHED} && {ERROR} === ''")

    speaker, build, idempotency = Speaker(chunks=None, pause_s=0.05), ["this build"], Idempotency()
    resuming = Resuming(ResumeTokens(b"secret", 600), idempotency, lambda version: build[-1], lambda version: "this engine")
    with serving(make_services(speaker, resuming=resuming, idempotency=idempotency)) as live, relay(live.port) as link:
        visit(browser, link.url, see)
