"""One link's state: away after a failure, called again after a time or by a probe, and every error counted."""

import asyncio
import math

import pytest

from pipeline.store.redis_link import SILENCE, RedisLink
from tests.support.clock import HeldClock


class Server:
    """Answers, fails or hangs, and counts its questions."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.hangs = False

    async def answer(self) -> int:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return self.calls


def make(retry_after_s: float) -> tuple[RedisLink, Server, HeldClock, list[str]]:
    clock, away = HeldClock(10.0), []
    link = RedisLink(
        "redis://localhost:1",
        connect_timeout_s=0.1,
        answer_timeout_s=0.1,
        retry_after_s=retry_after_s,
        on_trouble=away.append,
        clock=clock,
    )
    return link, Server(), clock, away


def ask(link: RedisLink, server: Server, *, is_probe: bool = False) -> int | None:
    return asyncio.run(link.ask(server.answer, timeout_s=0.01, is_probe=is_probe))


@pytest.mark.parametrize("error", [ConnectionError("gone"), TimeoutError("late")])
def test_after_a_failure_nothing_is_called_for_a_time(error: Exception):
    link, server, clock, away = make(retry_after_s=5.0)
    assert ask(link, server) == 1
    server.error = error
    assert ask(link, server) is None
    assert (link.is_away, link.errors, away) == (True, 1, [SILENCE])
    server.error = None
    clock.now += 4.9
    assert ask(link, server) is None
    assert server.calls == 2
    clock.now += 0.2
    assert ask(link, server) == 3
    assert not link.is_away


def test_without_such_a_time_only_a_probe_finds_it_again():
    link, server, clock, away = make(retry_after_s=math.inf)
    server.error = ConnectionError("gone")
    assert ask(link, server) is None
    clock.now += 1e6
    assert ask(link, server) is None
    assert server.calls == 1
    assert ask(link, server, is_probe=True) is None
    assert (server.calls, link.errors, len(away)) == (2, 2, 1)
    server.error = None
    assert ask(link, server, is_probe=True) == 3
    assert not link.is_away
    assert ask(link, server) == 4


def test_an_answer_that_does_not_come_is_a_failure():
    link, server, _, away = make(retry_after_s=math.inf)
    server.hangs = True
    assert ask(link, server) is None
    assert link.is_away
    assert away == [SILENCE]


def test_other_errors_are_the_callers():
    link, server, _, _ = make(retry_after_s=math.inf)
    server.error = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        ask(link, server)
    assert not link.is_away
