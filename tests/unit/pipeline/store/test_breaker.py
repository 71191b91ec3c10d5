"""A store that hangs: one caller waits, and neither the others nor encoders do."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest

from pipeline.audio.formats import audio_format
from pipeline.errors import StoreUnavailable
from pipeline.store.breaker import MOST_IN_FLIGHT, SLOW_S, Breaker, Open
from pipeline.store.mirror import Mirror
from pipeline.store.threads import ask_store
from serve.speech.speak import Encoding
from tests.support.clock import HeldClock


def refuses(breaker: Breaker) -> bool:
    try:
        with breaker.question():
            return False
    except Open:
        return True


def test_a_question_that_is_slow_lets_no_other_follow():
    clock = HeldClock()
    breaker = Breaker(clock)
    with breaker.question():
        assert not refuses(breaker)
        clock.advance(SLOW_S + 0.1)
        assert refuses(breaker)
    assert not refuses(breaker)


def test_after_a_silence_one_asks_at_a_time_until_there_is_an_answer():
    breaker = Breaker(HeldClock())
    breaker.failed()
    with breaker.question():
        assert refuses(breaker)
    with breaker.question():
        breaker.answered()
        assert not refuses(breaker)


def test_more_than_a_few_questions_wait_for_their_turn():
    breaker = Breaker(HeldClock(), slow_s=0.05)
    with ExitStack() as questions:
        for _ in range(MOST_IN_FLIGHT):
            questions.enter_context(breaker.question())
        assert refuses(breaker), "not for longer than a slow question"
    breaker = Breaker(HeldClock(), slow_s=60.0)
    with ExitStack() as questions:
        for _ in range(MOST_IN_FLIGHT):
            questions.enter_context(breaker.question())
        refused: list[bool] = []
        waiting = threading.Thread(target=lambda: refused.append(refuses(breaker)))
        waiting.start()
    waiting.join(30)
    assert refused == [False]


class Hanging:
    """A store whose changes() waits for `go_on`."""

    place = "here"

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked = threading.Semaphore(0)

    def changes(self, namespace: str, since: str) -> object:
        self.asked.release()
        self.go_on.wait(60)
        raise StoreUnavailable("the store does not answer; try again")


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    store = Hanging()
    yield store
    store.go_on.set()


def test_who_waits_for_a_refresh_of_another_thread_hears_so_soon(hanging: Hanging):
    mirror = Mirror(hanging, "voices", lambda key, version, value: value)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(mirror.refresh)
        assert hanging.asked.acquire(timeout=30)
        with pytest.raises(StoreUnavailable, match="still being read"):
            mirror.refresh()
        hanging.go_on.set()
        assert isinstance(reading.exception(30), StoreUnavailable)


def test_encoders_do_not_wait_for_stores(hanging: Hanging):
    async def play() -> bytes:
        blocked = [
            asyncio.ensure_future(run(hanging.go_on.wait, 60)) for run in (ask_store, asyncio.to_thread) for _ in range(40)
        ]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(30):
                with closing(Encoding(audio_format("mp3"), streamed=True)) as encoding:
                    return await encoding.feed(np.zeros(2400, np.float32)) + await encoding.finish()
        finally:
            hanging.go_on.set()
            await asyncio.gather(*blocked)

    assert asyncio.run(play())
