"""Quotas: nobody gets more than their key allows, counted alone, together, or with Redis away."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.keys import Quota
from serve.quotas import LocalQuotas, portion
from serve.quotas_redis import RedisQuotas
from tests.services import RedisServer

ROOT = Path(__file__).resolve().parents[3]
# So slow that no test's own time gives anything back.
SLOW = Quota(requests_per_s=0.0001, burst=6, streams=3, characters_a_day=1000, audio_s_a_minute=0.001)
STREAMS = Quota(requests_per_s=None, characters_a_day=None, streams=2)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    redis.Redis.from_url(running.url).flushall()
    return running


rates = st.builds(Quota, requests_per_s=st.floats(0.5, 50), burst=st.integers(1, 30), streams=st.none())


@given(rates, st.lists(st.floats(0, 3), max_size=60), st.integers(1, 4))
def test_no_stretch_of_time_holds_more_requests_than_burst_and_rate(quota, pauses, replicas):
    clock = Clock()
    doors = [LocalQuotas(lambda: replicas, clock) for _ in range(replicas)]
    taken: list[float] = []
    for number, pause in enumerate(pauses):
        clock.now += pause
        if not asyncio.run(doors[number % replicas].enter("key", quota, None)).refusal:
            taken.append(clock.now)
    burst = portion(quota.burst, 1 / replicas) * replicas
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + quota.requests_per_s * (taken[last] - taken[first]) + 1e-3


@given(rates, st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_who_comes_back_when_told_is_let_in(quota, pauses):
    clock = Clock()
    quotas = LocalQuotas(clock=clock)
    for pause in pauses:
        clock.now += pause
        verdict = asyncio.run(quotas.enter("key", quota, None))
        if verdict.refusal:
            clock.now += verdict.retry_after_s + 1e-6
            assert not asyncio.run(quotas.enter("key", quota, None)).refusal


def test_audio_may_run_over_and_the_next_request_waits_for_it():
    clock = Clock()
    quotas = LocalQuotas(clock=clock)
    quota = Quota(audio_s_a_minute=30.0)
    quotas.heard("key", quota, 29.0)
    assert not asyncio.run(quotas.enter("key", quota, None)).refusal
    quotas.heard("key", quota, 16.0)  # 15 s too much: half a minute at this rate
    verdict = asyncio.run(quotas.enter("key", quota, None))
    assert (verdict.refusal, round(verdict.retry_after_s)) == ("quota_exceeded", 30)
    clock.now += 30.1
    assert not asyncio.run(quotas.enter("key", quota, None)).refusal


def test_a_day_begins_anew_at_midnight():
    clock = Clock()
    quotas = LocalQuotas(clock=clock)
    quota = Quota(characters_a_day=100)
    assert not asyncio.run(quotas.write("key", quota, 100)).refusal
    verdict = asyncio.run(quotas.write("key", quota, 1))
    assert verdict.refusal == "quota_exceeded"
    clock.now += verdict.retry_after_s
    assert not asyncio.run(quotas.write("key", quota, 100)).refusal


actions = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.booleans()),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("write"), st.integers(1, 600)),
        st.tuples(st.just("heard"), st.sampled_from([0.0, 0.0005, 0.001])),
    ),
    max_size=25,
)


@settings(max_examples=25)
@given(actions=actions)
def test_redis_counts_as_the_process_does(running: RedisServer, actions):
    """The same questions, the same answers: LocalQuotas is the readable twin of the scripts."""
    redis.Redis.from_url(running.url).flushall()

    async def ask() -> None:
        local, shared = LocalQuotas(), RedisQuotas(running.url, LocalQuotas())
        permits: list[str] = []
        for number, (what, value) in enumerate(actions):
            if what == "enter":
                permit = f"p{number}" if value else None
                mine, theirs = [await each.enter("key", SLOW, permit) for each in (local, shared)]
                assert (mine.refusal, mine.remaining) == (theirs.refusal, theirs.remaining)
                assert abs(mine.retry_after_s - theirs.retry_after_s) < 5
                if permit and not mine.refusal:
                    permits.append(permit)
            elif what == "leave" and permits:
                permit = permits.pop(value % len(permits))
                for each in (local, shared):
                    each.leave("key", permit)
                await asyncio.gather(*shared._leaving)
            elif what == "write":
                assert (await local.write("key", SLOW, value)).refusal == (await shared.write("key", SLOW, value)).refusal
            elif what == "heard":
                for each in (local, shared):
                    each.heard("key", SLOW, value)
                await shared.renew()
        assert not shared.is_away
        await shared.close()

    asyncio.run(ask())


def test_replicas_share_one_count(server: RedisServer):
    async def ask() -> None:
        doors = [RedisQuotas(server.url, LocalQuotas(lambda: 3)) for _ in range(3)]
        verdicts = await asyncio.gather(*(doors[number % 3].enter("key", SLOW, None) for number in range(30)))
        assert sum(not verdict.refusal for verdict in verdicts) == SLOW.burst
        entered = await asyncio.gather(*(doors[number % 3].enter("other", STREAMS, f"p{number}") for number in range(9)))
        assert sum(not verdict.refusal for verdict in entered) == STREAMS.streams
        written = await asyncio.gather(*(doors[number % 3].write("key", SLOW, 300) for number in range(9)))
        assert sum(not verdict.refusal for verdict in written) == 3
        for door in doors:
            await door.close()

    asyncio.run(ask())
    assert redis.Redis.from_url(server.url).zcard("{chattts:quota:other}:streams") == 0


def test_a_refused_or_left_request_leaves_no_permit(server: RedisServer):
    async def ask() -> None:
        quotas = RedisQuotas(server.url, LocalQuotas())
        for number in range(20):
            task = asyncio.create_task(quotas.enter("key", STREAMS, f"p{number}"))
            await asyncio.sleep(0.0003 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            quotas.leave("key", f"p{number}")
        await asyncio.gather(*quotas._leaving)
        await asyncio.sleep(0.05)
        await quotas.renew()
        # A question overtaken by its own leaving may stand until its lease is over; nothing renews it.
        assert quotas._permits == {}
        await quotas.close()

    asyncio.run(ask())


HOLDER = """
import asyncio, sys
from serve.keys import Quota
from serve.quotas import LocalQuotas
from serve.quotas_redis import RedisQuotas

async def hold():
    quotas = RedisQuotas(sys.argv[1], LocalQuotas(), lease_s=1.5)
    quota = Quota(requests_per_s=None, characters_a_day=None, streams=2)
    for permit in "ab":
        assert not (await quotas.enter("key", quota, permit)).refusal
    print("held", flush=True)
    await quotas.follow()

asyncio.run(hold())
"""


def test_permits_of_a_killed_process_run_out(server: RedisServer):
    async def ask() -> None:
        quotas = RedisQuotas(server.url, LocalQuotas())
        await asyncio.sleep(3.0)  # twice the lease: the holder renews it
        assert (await quotas.enter("key", STREAMS, "mine")).refusal == "too_many_concurrent_requests"
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(timeout=10)
        began = time.monotonic()
        while (await quotas.enter("key", STREAMS, "mine")).refusal:
            assert time.monotonic() - began < 10, "the permits of the dead are never given back"
            await asyncio.sleep(0.05)
        await quotas.close()

    with subprocess.Popen([sys.executable, "-c", HOLDER, server.url], cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            asyncio.run(ask())
        finally:
            holder.kill()


def test_without_redis_each_replica_allows_its_share_and_never_more(tmp_path: Path):
    server = RedisServer(tmp_path)

    async def ask() -> None:
        doors = [RedisQuotas(server.url, LocalQuotas(lambda: 2)) for _ in range(2)]
        assert not (await doors[0].enter("key", STREAMS, "before")).refusal
        assert not any(door.is_away for door in doors)
        server.kill()
        verdicts = [await door.enter("key", SLOW, None) for door in doors for _ in range(10)]
        assert sum(not verdict.refusal for verdict in verdicts) == SLOW.burst, "half of it each"
        began = time.monotonic()
        assert (await doors[0].enter("key", STREAMS, "x")).refusal, "its share of two is one, and that is held"
        assert not (await doors[1].enter("key", STREAMS, "during")).refusal
        assert (await doors[0].write("key", SLOW, 501)).refusal == "quota_exceeded"
        assert not (await doors[0].write("key", SLOW, 500)).refusal
        assert time.monotonic() - began < 0.4, "who knows that it is away does not ask again"
        looks = asyncio.create_task(doors[0].renew())
        while not looks.done():
            assert doors[0].is_away, "nor while somebody looks whether it is back"
            await asyncio.sleep(0)
        assert all(door.is_away for door in doors)
        server.start()
        for door in doors:
            await door.renew()  # finds it back
            await door.renew()
            assert not door.is_away
        assert (await doors[0].enter("key", STREAMS, "y")).refusal, "permits taken meanwhile are known to all"
        doors[1].leave("key", "during")
        await asyncio.gather(*doors[1]._leaving)
        assert not (await doors[0].enter("key", STREAMS, "z")).refusal
        for door in doors:
            await door.close()
        idle = RedisQuotas(server.url, LocalQuotas())
        server.kill()
        await idle.renew()
        assert idle.is_away, "nobody has asked it anything, and yet it knows"
        server.start()
        await idle.renew()
        assert not idle.is_away
        await idle.close()

    try:
        asyncio.run(ask())
    finally:
        server.kill()


def test_a_frozen_redis_costs_one_request_its_time_limit(tmp_path: Path):
    server = RedisServer(tmp_path)

    async def ask() -> None:
        quotas = RedisQuotas(server.url, LocalQuotas())
        assert not (await quotas.enter("key", SLOW, None)).refusal
        server.freeze()
        took = []
        for _ in range(3):
            began = time.monotonic()
            await quotas.enter("key", SLOW, None)
            took.append(time.monotonic() - began)
        assert took[0] < 3
        assert sum(took[1:]) < 0.2
        server.thaw()
        while quotas.is_away:
            await quotas.renew()
        await quotas.close()

    try:
        asyncio.run(ask())
    finally:
        server.kill()
