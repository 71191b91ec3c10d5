"""What a key and a replica admit: quotas, charges that are kept or given back, and requests that are inside at once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import AtCapacity, Draining
from serve.access.admission import AdmissionLimiter
from serve.access.api_keys import Quota
from serve.access.caller import Caller
from serve.access.quotas import Charge, LocalQuotas, portion
from tests.support.clock import HeldClock
from tests.support.guarded import TURNS, RemoteQuotas

rates = st.builds(Quota, requests_per_s=st.floats(0.5, 50), burst=st.integers(1, 30), streams=st.none())


@given(rates, st.lists(st.floats(0, 3), max_size=60), st.integers(1, 4))
def test_no_stretch_of_time_holds_more_requests_than_burst_and_rate(quota, pauses, replicas):
    clock = HeldClock(1e9)
    counters = [LocalQuotas(lambda: replicas, clock) for _ in range(replicas)]
    times: list[float] = []
    for number, pause in enumerate(pauses):
        clock.now += pause
        if not asyncio.run(counters[number % replicas].acquire("key", quota, None)).refusal:
            times.append(clock.now)
    burst = portion(quota.burst, 1 / replicas) * replicas
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + quota.requests_per_s * (times[last] - times[first]) + 1e-3


@given(rates, st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_a_request_after_its_retry_time_is_allowed(quota, pauses):
    clock = HeldClock(1e9)
    quotas = LocalQuotas(clock=clock)
    for pause in pauses:
        clock.now += pause
        decision = asyncio.run(quotas.acquire("key", quota, None))
        if decision.refusal:
            clock.now += decision.retry_after_s + 1e-6
            assert not asyncio.run(quotas.acquire("key", quota, None)).refusal


def test_audio_may_run_over_and_the_next_request_waits_for_it():
    clock = HeldClock(1e9)
    quotas = LocalQuotas(clock=clock)
    quota = Quota(audio_s_a_minute=30.0)
    quotas.record_audio("key", quota, 29.0)
    assert not asyncio.run(quotas.acquire("key", quota, None)).refusal
    quotas.record_audio("key", quota, 16.0)  # 15 s too much: half a minute at this rate
    decision = asyncio.run(quotas.acquire("key", quota, None))
    assert (decision.refusal, round(decision.retry_after_s)) == ("quota_exceeded", 30)
    clock.now += 30.1
    assert not asyncio.run(quotas.acquire("key", quota, None)).refusal


def test_a_new_day_begins_at_midnight():
    clock = HeldClock(1e9)
    quotas = LocalQuotas(wall_clock=clock)
    quota = Quota(characters_a_day=100)
    assert not asyncio.run(quotas.charge_characters("key", quota, 100)).refusal
    decision = asyncio.run(quotas.charge_characters("key", quota, 1))
    assert decision.refusal == "quota_exceeded"
    clock.now += decision.retry_after_s
    assert not asyncio.run(quotas.charge_characters("key", quota, 100)).refusal


def test_a_refund_is_of_its_day_and_of_what_was_charged():
    clock = HeldClock(1e9)
    quotas = LocalQuotas(wall_clock=clock)
    quota = Quota(characters_a_day=100)

    def charge(characters: int) -> Charge:
        decision = asyncio.run(quotas.charge_characters("key", quota, characters))
        assert not decision.refusal
        return Charge(characters, decision.day)

    def today() -> int:
        return asyncio.run(quotas.characters_today("key"))

    first, second = charge(60), charge(40)
    quotas.refund_characters("key", quota, first)
    assert today() == 40
    quotas.refund_characters("key", quota, Charge(60, first.day))
    assert today() == 0, "never below"
    clock.now += 86_400
    charge(30)
    quotas.refund_characters("key", quota, second)
    assert today() == 30, "what was charged yesterday is no part of it"


@pytest.mark.parametrize("jump_s", [-3600.0, -86_400.0 * 365, 86_400.0])
def test_a_clock_that_jumps_locks_no_key_out(jump_s: float):
    clock, wall = HeldClock(1e9), HeldClock(1e9)
    quotas = LocalQuotas(clock=clock, wall_clock=wall)
    quota = Quota(requests_per_s=1.0, burst=1, characters_a_day=100, audio_s_a_minute=60.0)
    assert not asyncio.run(quotas.acquire("key", quota, None)).refusal
    assert not asyncio.run(quotas.charge_characters("key", quota, 100)).refusal
    wall.now += jump_s
    for now in (wall.now, wall.now - 7200, wall.now + 7200):  # to and fro over midnight
        wall.now = now
        refused = asyncio.run(quotas.acquire("key", quota, None))
        assert 0 < refused.retry_after_s <= 1.0
        written = asyncio.run(quotas.charge_characters("key", quota, 101))
        assert (written.refusal, 0 < written.retry_after_s <= 86_400) == ("quota_exceeded", True)
    clock.now += 1.0
    assert not asyncio.run(quotas.acquire("key", quota, None)).refusal


# Charges: whatever is cancelled meanwhile.


@pytest.mark.parametrize("turns", range(2 * TURNS + 6))
@pytest.mark.parametrize("keeps", [False, True])
async def test_a_charge_is_kept_or_given_back_wherever_it_is_cancelled(turns: int, keeps: bool):
    caller = Caller("anna", quota=Quota(characters_a_day=100), quotas=RemoteQuotas())
    is_charged = False

    async def work() -> None:
        nonlocal is_charged
        async with caller.charged(12) as charge:
            await asyncio.sleep(0)
            if keeps:
                charge.keep()
                is_charged = True
            await asyncio.sleep(0)

    task = asyncio.create_task(work())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(2 * TURNS + 6):
        await asyncio.sleep(0)  # an answer may still be on its way
    assert await caller.characters_today() == (12 if is_charged else 0)


# Requests inside at once, and when a refused one may come back.


def test_a_closed_limiter_admits_nothing_and_cuts_nothing_short():
    admission = AdmissionLimiter(2)
    with admission.acquire():
        assert admission.close() == 1
        with pytest.raises(Draining), admission.acquire():
            pass
        assert admission.close() == 1
    assert admission.close() == 0


def test_what_continues_is_admitted_to_a_closed_limiter_while_there_is_room():
    admission = AdmissionLimiter(1)
    admission.close()
    with pytest.raises(Draining):
        admission.check()
    with admission.acquire(continues=True), pytest.raises(AtCapacity):
        admission.check(continues=True)
    assert admission.in_flight == 0


def test_admission_counts_and_gives_places_back():
    admission = AdmissionLimiter(2)
    with admission.acquire(), admission.acquire():
        with pytest.raises(AtCapacity), admission.acquire():
            pass
        assert admission.in_flight == 2
    assert admission.in_flight == 0
    with pytest.raises(ValueError, match="inside"), admission.acquire():
        raise ValueError("inside")
    assert admission.in_flight == 0


def test_waiting_times_follow_how_long_requests_stay():
    clock = HeldClock(0.0)
    admission = AdmissionLimiter(4, clock=clock)
    for _ in range(50):
        with admission.acquire():
            clock.now += 10.0
    assert admission.mean_duration_s == pytest.approx(10.0, rel=0.01)
    assert admission.retry_after_s() == pytest.approx(2.5, rel=0.01)


def test_refused_requests_get_increasing_times_to_try_again():
    admission = AdmissionLimiter(1)
    waits = []
    with admission.acquire():
        for _ in range(100):
            with pytest.raises(AtCapacity) as refusal, admission.acquire():
                pass
            waits.append(refusal.value.retry_after_s)
    assert waits == sorted(waits)
    assert waits[1] > waits[0]
    assert waits[-1] == 60.0
