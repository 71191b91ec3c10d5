"""What is followed again and again: why it cannot be is said while it lasts, and logged once."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from pipeline.errors import StoreUnavailable
from pipeline.store.poll import follow
from pipeline.store.redis import RedisStore
from tests.support.services import RedisServer


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


def test_a_defect_and_an_outage_are_logged_once_each(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    problems: dict[str, str] = {}
    errors: list[Exception | None] = [*[StoreUnavailable("away")] * 3, *[TypeError("a bug")] * 3, None, None]
    seen = []

    def refresh() -> None:
        seen.append(dict(problems))
        if errors and (error := errors.pop(0)) is not None:
            raise error

    async def play() -> None:
        following = asyncio.ensure_future(follow("voices", refresh, 0.0, problems))
        await until(lambda: not errors)
        following.cancel()

    asyncio.run(play())
    assert [each.get("voices", "") for each in seen[:8]] == [
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
