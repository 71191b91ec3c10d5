"""One link's state: away after a failure, called again after a time or by a probe, and every error counted."""

import asyncio
import math
from pathlib import Path

import pytest
import redis
from redis.exceptions import ResponseError

from pipeline.store.redis_link import REFUSALS, SILENCE, RedisLink, Trouble, trouble_of
from tests.support.clock import HeldClock
from tests.support.faulty_redis import FaultyRedis
from tests.support.services import RedisServer


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


def test_a_server_far_away_is_used_once_a_connection_is_made(tmp_path: Path):
    server = RedisServer(tmp_path)
    faulty = FaultyRedis(server)
    faulty.delay_s = 0.1

    async def play() -> None:
        link = RedisLink(faulty.url, connect_timeout_s=30.0, answer_timeout_s=30.0, retry_after_s=1e6)

        async def echo() -> bytes:
            return bytes(await link.client.echo(b"here"))

        assert await link.ask(echo, timeout_s=0.05) is None, "nobody waits for the connection"
        assert link.is_away
        for _ in range(3000):
            if not link.is_away:
                break
            await asyncio.sleep(0.01)
        assert await link.ask(echo, timeout_s=30.0) == b"here"
        assert link.errors == 1
        assert await link.ask(echo, timeout_s=0.01) is None
        await asyncio.gather(*link._late)
        assert link.is_away, "an answer that was late by itself ends nothing"
        await link.close()

    try:
        asyncio.run(play())
    finally:
        faulty.close()
        server.kill()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ResponseError("OOM command not allowed. script: 1, on @user_script:1."), Trouble(REFUSALS["OOM"], True, True)),
        (
            ResponseError("ERR Error running script: @user_script: 4: -READONLY You can't write"),
            Trouble(REFUSALS["READONLY"], True),
        ),
        (ResponseError("MISCONF Redis is configured"), Trouble(REFUSALS["MISCONF"], True)),
        (ResponseError("DB index is out of range"), Trouble("has no database of this number", True)),
        (ConnectionRefusedError("gone"), Trouble(SILENCE)),
        (
            redis.exceptions.ConnectionError("Error 111 connecting to h:1. Connection refused."),
            Trouble(SILENCE, was_sent=False),
        ),
        (redis.exceptions.TimeoutError("Timeout reading from socket"), Trouble(SILENCE)),
        (ResponseError("ERR unknown command 'EVALSHA'"), None),
        (ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), None),
        (ValueError("a bug"), None),
    ],
)
def test_what_a_failure_means(error: Exception, expected: Trouble | None):
    assert trouble_of(error) == expected
