"""Resuming, in a real browser: a lost connection is a pause at most, and what is heard are the API's bytes all the same."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.idempotency import Idempotency
from serve.access.resume_tokens import ResumeTokens
from serve.config.app_config import LimitsConfig
from serve.speech.resuming import Resuming
from tests.support.browser import Page
from tests.support.demo_voice import demo_speaker
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.relay import relay
from tests.support.studio import AWAY, ERROR, FINISHED, FIRST_TEXT, PLAYED, WORDS, has_heard, unfold, visit, write

pytestmark = pytest.mark.slow

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
