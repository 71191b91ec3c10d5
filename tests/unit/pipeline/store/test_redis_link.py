"""One link to Redis: its URL, its state after a failure, what each failure means, and how refreshes follow it."""

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.exceptions import ResponseError

from pipeline.errors import ConfigError, StoreUnavailable
from pipeline.store.open import open_store
from pipeline.store.poll import follow
from pipeline.store.redis_link import REFUSALS, SILENCE, RedisLink, Trouble, trouble_of
from pipeline.store.redis_store import RedisStore
from pipeline.store.redis_url import check_redis_url, url_without_password
from serve.commands.operate.show_config import resolved
from serve.config.app_config import AppConfig, read_app_config
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


# Redis URLs: what no client can open is refused when it is read, without a part of a password in any message.


GOOD = {
    "redis://host": "redis://host",
    "redis://host:6379/2": "redis://host:6379/2",
    "redis://:geheim@host:1/": "redis://host:1/",
    "redis://user:geh%2Feim%23@[::1]:6379/15": "redis://[::1]:6379/15",
    "redis://user:ge@heim@host:6379": "redis://host:6379",
    "rediss://:geheim@host:6380/0?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=true": "rediss://host:6380/0",
    "redis://host/0?db=3&protocol=2": "redis://host/0",
}
BAD = {
    "redis://:geheim/b@127.0.0.1:6379/0": "percent-encoded",
    "redis://:geheim#b@127.0.0.1:6379/0": "percent-encoded",
    "redis://:geheim?b@127.0.0.1:6379/0": "percent-encoded",
    "redis://:geh[eim@127.0.0.1:6379/0": "percent-encoded",
    "redis://:geheim 1@127.0.0.1:6379/0": "without blanks",
    "redis://:geheim\n@127.0.0.1:6379/0": "without blanks",
    "redis://:geheim@127.0.0.1:99999/0": "from 1 to 65535",
    "redis://:geheim@127.0.0.1:0/0": "from 1 to 65535",
    "redis://:geheim@127.0.0.1:geheim/0": "from 1 to 65535",
    "redis://:geheim@:6379/0": "host is missing",
    "redis:///0": "host is missing",
    "redis://:geheim@host/geheim": "number of a database",
    "redis://:geheim@host/1/2": "number of a database",
    "redis://:geheim@host/-1": "number of a database",
    "redis://:geheim@host/0?db=geheim": "number of a database",
    "redis://:geheim@host/0?geheim=1": "behind [?] it may have db, protocol",
    "redis://:geheim@host/0?ssl_ca_certs=x": "needs rediss://",
    "redis://:geheim@one:1,two:2/0": "Sentinel and Cluster are not supported",
    "redis+sentinel://:geheim@one/0": "Sentinel and Cluster are not supported",
    "redis-cluster://:geheim@one/0": "Sentinel and Cluster are not supported",
    "REDIS://:geheim@one/0": "a Redis is redis://",
    "valkey://:geheim@one/0": "a Redis is redis://",
}


@pytest.mark.parametrize("url", GOOD)
def test_what_can_be_opened_is_taken_as_it_is(url: str):
    assert check_redis_url(url) == url
    assert url_without_password(url) == GOOD[url]
    store = open_store(url)  # connects at its first question
    assert store.place == GOOD[url]
    store.close()


@pytest.mark.parametrize("section", ["voices.store", "keys.store", "cache.redis"])
@pytest.mark.parametrize("url", BAD)
def test_what_cannot_be_opened_is_refused_without_showing_it(url: str, section: str):
    with pytest.raises(ConfigError, match=BAD[url]) as error:
        check_redis_url(url)
    assert "geheim" not in str(error.value)
    name, _, key = section.partition(".")
    with pytest.raises(ConfigError, match=f"(?s){section}.*{BAD[url]}") as error:
        read_app_config({name: {key: url}})
    with pytest.raises(ValueError, match=BAD[url]) as raw:
        AppConfig.model_validate({name: {key: url}})
    assert "geheim" not in f"{error.value} {raw.value}"


@pytest.mark.parametrize("wrong", [{"voices": "redis://:geheim@h"}, {"cache": {"redis": ["redis://:geheim@h"]}}])
def test_a_url_in_a_wrong_place_is_not_shown_either(wrong: dict[str, object]):
    with pytest.raises(ConfigError) as error:
        read_app_config(wrong)
    assert "geheim" not in str(error.value)


def test_the_command_that_shows_a_configuration_shows_no_password():
    app = read_app_config({"voices": {"store": "redis://:geheim@host:6379/1"}, "cache": {"redis": "rediss://u:geheim@host"}})
    shown = {path: value for path, value, *_ in resolved(app, {}, "")}
    assert (shown["voices.store"], shown["cache.redis"]) == ("redis://host:6379/1", "rediss://host")
    assert "geheim" not in str(shown)


# What is followed again and again: why it cannot be is said while it lasts, and logged once.


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not come")


def test_a_store_that_takes_no_writes_is_said_until_it_does(tmp_path: Path):
    server = RedisServer(tmp_path)
    client, store = redis.Redis.from_url(server.url), RedisStore(server.url)
    problems: dict[str, str] = {}

    async def play() -> None:
        following = asyncio.ensure_future(follow("writes", store.probe, 0.01, problems))
        client.replicaof("127.0.0.1", "1")
        await until(lambda: problems == {"writes": "the store takes no writes: it is a replica; nothing was changed"})
        client.replicaof("NO", "ONE")
        await until(lambda: not problems)
        following.cancel()

    try:
        asyncio.run(play())
    finally:
        server.kill()


def test_a_question_that_outlasts_its_store_leaves_no_connection(tmp_path: Path):
    server = RedisServer(tmp_path)
    client, store = redis.Redis.from_url(server.url), RedisStore(server.url)
    asked = store._probe

    def ask_once_closed(keys: list[str], values: list[object]) -> object:
        store.close()
        return asked(keys, values)

    store._probe = ask_once_closed
    try:
        store.probe()
        assert store._redis.connection_pool._available_connections, "the question has made a connection"
        assert not any(connection.is_connected for connection in store._redis.connection_pool._available_connections)
        asyncio.run(until(lambda: len(client.client_list()) == 1))
    finally:
        server.kill()


async def test_a_defect_and_an_outage_are_logged_once_each(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    problems: dict[str, str] = {}
    errors: list[Exception | None] = [*[StoreUnavailable("away")] * 3, *[TypeError("a bug")] * 3, None, None]
    snapshots = []

    def refresh() -> None:
        snapshots.append(dict(problems))
        if errors and (error := errors.pop(0)) is not None:
            raise error

    following = asyncio.ensure_future(follow("voices", refresh, 0.0, problems))
    await until(lambda: not errors)
    following.cancel()
    assert [snapshot.get("voices", "") for snapshot in snapshots[:8]] == [
        "",
        *["away"] * 3,
        *["a defect (TypeError); the log has it"] * 3,
        "",
    ]
    assert [record.getMessage() for record in caplog.records if record.name == "ray.serve.chattts"] == [
        "voices: away; what is known so far goes on working",
        "voices: could not be refreshed",
        "voices: the store is back",
    ]
