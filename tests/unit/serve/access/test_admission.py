"""How many requests are inside at once, and when a refused one may come back."""

import pytest

from pipeline.errors import AtCapacity, Draining
from serve.access.admission import AdmissionLimiter
from tests.support.clock import HeldClock


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
