"""Quotas in Redis: one count for all replicas, and a share for each while Redis is away."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.access import redis_quotas
from serve.access.api_keys import Quota
from serve.access.quotas import Charge, LocalQuotas, today
from serve.access.redis_quotas import LEASE_S, RedisQuotas
from tests.support.effort import examples
from tests.support.services import RedisServer

ROOT = Path(__file__).resolve().parents[4]
PATIENCE_S = 30.0  # a Redis on a busy machine answers late, but it answers


# So slow that no test's own time gives anything back.
SLOW = Quota(requests_per_s=0.0001, burst=6, streams=3, characters_a_day=1000, audio_s_a_minute=0.001)
STREAMS = Quota(requests_per_s=None, characters_a_day=None, streams=2)


def counted(quotas: RedisQuotas) -> Callable[[], int]:
    """How many questions of requests have been sent to Redis."""
    quotas._enter, quotas._write = enter, write = Mock(wraps=quotas._enter), Mock(wraps=quotas._write)
    return lambda: enter.call_count + write.call_count


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_quotas, "ANSWER_TIMEOUT_S", PATIENCE_S)
        yield


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    redis.Redis.from_url(running.url).flushall()
    return running


actions = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.booleans()),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("write"), st.integers(1, 600)),
        st.tuples(st.just("refund"), st.tuples(st.integers(1, 900), st.sampled_from([0, 1]))),
        st.tuples(st.just("heard"), st.sampled_from([0.0, 0.0005, 0.001])),
    ),
    max_size=25,
)


@settings(max_examples=examples(25))
@given(actions=actions)
async def test_redis_counts_as_the_process_does(running: RedisServer, actions):
    """The same questions, the same answers: LocalQuotas is the readable twin of the scripts."""
    redis.Redis.from_url(running.url).flushall()

    local, shared = LocalQuotas(), RedisQuotas(running.url, LocalQuotas())
    permits: list[str] = []
    for number, (action, value) in enumerate(actions):
        if action == "enter":
            permit = f"p{number}" if value else None
            mine, theirs = [await quotas.acquire("key", SLOW, permit) for quotas in (local, shared)]
            assert (mine.refusal, mine.remaining) == (theirs.refusal, theirs.remaining)
            assert abs(mine.retry_after_s - theirs.retry_after_s) < 5
            if permit and not mine.refusal:
                permits.append(permit)
        elif action == "leave" and permits:
            permit = permits.pop(value % len(permits))
            for quotas in (local, shared):
                quotas.release("key", permit)
            await asyncio.gather(*shared._leaving)
        elif action == "write":
            assert (await local.charge_characters("key", SLOW, value)).refusal == (
                await shared.charge_characters("key", SLOW, value)
            ).refusal
            assert await local.characters_today("key") == await shared.characters_today("key")
        elif action == "refund":
            characters, days_ago = value
            for quotas in (local, shared):
                day = (await quotas.charge_characters("key", SLOW, 0)).day - days_ago
                quotas.refund_characters("key", SLOW, Charge(characters, day))
            await asyncio.gather(*shared._leaving)
            assert await local.characters_today("key") == await shared.characters_today("key")
        elif action == "heard":
            for quotas in (local, shared):
                quotas.record_audio("key", SLOW, value)
            await shared.renew()
    assert not shared.is_away
    await shared.close()


async def test_replicas_share_one_count(server: RedisServer):
    counters = [RedisQuotas(server.url, LocalQuotas(lambda: 3)) for _ in range(3)]
    decisions = await asyncio.gather(*(counters[number % 3].acquire("key", SLOW, None) for number in range(30)))
    assert sum(not decision.refusal for decision in decisions) == SLOW.burst
    entered = await asyncio.gather(*(counters[number % 3].acquire("other", STREAMS, f"p{number}") for number in range(9)))
    assert sum(not decision.refusal for decision in entered) == STREAMS.streams
    written = await asyncio.gather(*(counters[number % 3].charge_characters("key", SLOW, 300) for number in range(9)))
    assert sum(not decision.refusal for decision in written) == 3
    for counter in counters:
        await counter.close()
    assert redis.Redis.from_url(server.url).zcard("{chattts:quota:other}:streams") == 0


@pytest.mark.parametrize(
    "order", ["charge, settle", "settle", "settle, charge", "charge, refund, settle", "charge, settle, refund"]
)
async def test_a_charge_of_a_process_that_died_is_taken_back_once(server: RedisServer, order: str):
    dead, *others = (RedisQuotas(server.url, LocalQuotas()) for _ in range(3))
    name = order.replace(", ", "-")
    await others[0].charge_characters(name, SLOW, 500)
    charge = Charge(300, today(), "token")
    for act in order.split(", "):
        if act == "charge":
            assert not (await dead.charge_characters(name, SLOW, 300, "token")).refusal
        elif act == "refund":
            dead.refund_characters(name, SLOW, charge)
        for quotas in others if act == "settle" else ():
            quotas.settle_characters(name, SLOW, charge)
        for quotas in (dead, *others):
            await quotas.renew()
    assert [await quotas.characters_today(name) for quotas in (dead, *others)] == [500] * 3
    for quotas in (dead, *others):
        await quotas.close()


async def test_a_refused_or_left_request_leaves_no_permit(server: RedisServer):
    quotas = RedisQuotas(server.url, LocalQuotas())
    for turns in range(20):
        task = asyncio.create_task(quotas.acquire("key", STREAMS, f"p{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)  # a client may leave at any of them
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        quotas.release("key", f"p{turns}")
    await asyncio.gather(*quotas._leaving)
    await quotas.renew()
    # A question overtaken by its own leaving may stand until its lease is over; nothing renews it.
    assert quotas._permits == {}
    await quotas.close()


def set_clock_back(client: redis.Redis, seconds: float) -> None:
    """Leave Redis as if everything in it had been written by a clock so far ahead of the present one."""
    for name in client.scan_iter("{chattts:quota:*"):
        if client.type(name) == b"zset":
            for permit in client.zrange(name, 0, -1):
                client.zincrby(name, seconds, permit)
        elif client.type(name) == b"string":
            client.set(name, float(client.get(name)) + seconds, keepttl=True)


@pytest.mark.parametrize("jump_s", [3600.0, 86_400.0 * 365, -86_400.0])
async def test_a_redis_whose_clock_jumps_locks_no_key_out(server: RedisServer, jump_s: float):
    client = redis.Redis.from_url(server.url)
    rate = Quota(requests_per_s=1.0, burst=100, streams=1, audio_s_a_minute=60.0)

    dead, alive = RedisQuotas(server.url, LocalQuotas()), RedisQuotas(server.url, LocalQuotas())
    await dead.acquire("key", rate, "of a process that has died")
    alive.record_audio("key", rate, 100.0)  # forty seconds too much
    await alive.renew()
    before = await alive.acquire("key", rate, None)
    assert before.refusal == "quota_exceeded"
    set_clock_back(client, jump_s)
    after = await alive.acquire("key", rate, None)
    if jump_s < 0:  # Redis' clock went on, so that whatever was due is over; whoever counted it knows better
        assert after.refusal == "quota_exceeded"
    else:
        assert after.refusal == "quota_exceeded"
        assert 0 < after.retry_after_s <= before.retry_after_s + 1e-5  # what is due is kept in whole microseconds
        (until,) = (score for _, score in client.zrange("{chattts:quota:key}:streams", 0, -1, withscores=True))
        seconds, microseconds = client.time()
        assert until - seconds - microseconds / 1e6 <= LEASE_S, "the dead give their permits back as soon as before"
    await dead.close()
    await alive.close()


HOLDER = """
import asyncio, sys
from serve.access import redis_quotas
from serve.access.api_keys import Quota
from serve.access.quotas import LocalQuotas
from serve.access.redis_quotas import RedisQuotas

async def hold():
    quotas = RedisQuotas(sys.argv[1], LocalQuotas(), lease_s=600)
    quota = Quota(requests_per_s=None, characters_a_day=None, streams=2)
    for permit in "ab":
        assert not (await quotas.acquire("key", quota, permit)).refusal
    print("held", flush=True)
    await quotas.follow()

asyncio.run(hold())
"""


@pytest.mark.slow
async def test_permits_of_a_killed_process_run_out(server: RedisServer):
    client = redis.Redis.from_url(server.url)
    leases = "{chattts:quota:key}:streams"

    def pass_time(seconds: float) -> None:
        for permit in client.zrange(leases, 0, -1):
            client.zincrby(leases, -seconds, permit)

    command = [sys.executable, "-c", HOLDER, server.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:  # noqa: ASYNC220
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            quotas = RedisQuotas(server.url, LocalQuotas())
            granted = client.zscore(leases, "a")  # read before the time passes: the holder may renew it at any moment after
            pass_time(590)
            began = time.monotonic()
            while min(client.zscore(leases, permit) for permit in "ab") < granted - 90:
                assert time.monotonic() - began < 60, "the holder does not renew its leases"
                await asyncio.sleep(0.05)
            pass_time(20)
            assert (await quotas.acquire("key", STREAMS, "mine")).refusal == "too_many_concurrent_requests"
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait(timeout=60)
            pass_time(620)
            assert not (await quotas.acquire("key", STREAMS, "mine")).refusal, "the permits of the dead are given back"
            await quotas.close()
        finally:
            holder.kill()


async def test_without_redis_each_replica_allows_its_share_and_never_more(own_redis: RedisServer):
    counters = [RedisQuotas(own_redis.url, LocalQuotas(lambda: 2)) for _ in range(2)]
    assert not (await counters[0].acquire("key", STREAMS, "before")).refusal
    assert not any(counter.is_away for counter in counters)
    own_redis.kill()
    decisions = [await counter.acquire("key", SLOW, None) for counter in counters for _ in range(10)]
    assert sum(not decision.refusal for decision in decisions) == SLOW.burst, "half of it each"
    commands = counted(counters[0])
    assert (await counters[0].acquire("key", STREAMS, "x")).refusal, "its share of two is one, and that is held"
    assert not (await counters[1].acquire("key", STREAMS, "during")).refusal
    assert (await counters[0].charge_characters("key", SLOW, 501)).refusal == "quota_exceeded"
    assert not (await counters[0].charge_characters("key", SLOW, 500)).refusal
    assert await counters[0].characters_today("key") == 500
    assert commands() == 0, "who knows that it is away does not ask again"
    looks = asyncio.create_task(counters[0].renew())
    while not looks.done():
        assert counters[0].is_away, "nor while somebody looks whether it is back"
        await asyncio.sleep(0)
    assert all(counter.is_away for counter in counters)
    own_redis.start()
    for counter in counters:
        await counter.renew()  # finds it back
        await counter.renew()
        assert not counter.is_away
    assert (await counters[0].acquire("key", STREAMS, "y")).refusal, "permits taken meanwhile are known to all"
    counters[1].release("key", "during")
    await asyncio.gather(*counters[1]._leaving)
    assert not (await counters[0].acquire("key", STREAMS, "z")).refusal
    for counter in counters:
        await counter.close()
    idle = RedisQuotas(own_redis.url, LocalQuotas())
    own_redis.kill()
    await idle.renew()
    assert idle.is_away, "nobody has asked it anything, and yet it knows"
    own_redis.start()
    await idle.renew()
    assert not idle.is_away
    await idle.close()


async def test_a_frozen_redis_costs_one_request_its_time_limit(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch):
    quotas = RedisQuotas(own_redis.url, LocalQuotas())
    assert not (await quotas.acquire("key", SLOW, None)).refusal
    own_redis.freeze()
    monkeypatch.setattr(redis_quotas, "ANSWER_TIMEOUT_S", 0.05)  # read at each call
    commands = counted(quotas)
    for _ in range(3):
        await quotas.acquire("key", SLOW, None)
    assert commands() == 1, "and the others find out without waiting"
    assert quotas.is_away
    own_redis.thaw()
    monkeypatch.setattr(redis_quotas, "ANSWER_TIMEOUT_S", PATIENCE_S)
    while quotas.is_away:
        await quotas.renew()
    await quotas.close()


async def test_replicas_reserve_audio_together_and_give_it_back(server: RedisServer):
    """Requests at one moment on several replicas: the one that crosses the limit is the last; what is not generated is free."""
    quota = Quota(requests_per_s=None, streams=None, characters_a_day=None, audio_s_a_minute=60.0)

    first, two = (RedisQuotas(server.url, LocalQuotas(lambda: 2)) for _ in range(2))
    reservations = [quotas.reserve_audio("key", quota, 25.0, f"r{number}") for number, quotas in enumerate([first, two] * 3)]
    decisions = await asyncio.gather(*reservations)
    allowed = [number for number, decision in enumerate(decisions) if not decision.refusal]
    assert len(allowed) == 3
    for number in range(6):
        (first, two)[number % 2].release_audio("key", quota, 25.0, f"r{number}")
    await asyncio.gather(*first._leaving, *two._leaving)
    assert not (await two.reserve_audio("key", quota, 50.0, "later")).refusal
    two.record_audio("key", quota, 70.0)
    two.release_audio("key", quota, 50.0, "later")
    await asyncio.gather(*two._leaving)
    refused = await first.reserve_audio("key", quota, 1.0, "last")
    assert (refused.refusal, 5 < refused.retry_after_s <= 10) == ("quota_exceeded", True)
    await first.close()
    await two.close()
