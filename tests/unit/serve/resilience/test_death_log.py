"""Death log: which deaths count, and which request is to blame."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from serve.resilience.death_log import MAX_DEATHS, DeathLog, ReplicaDeath, consecutive_deaths


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=7))
def test_consecutive_deaths_are_the_longest_chain_of_calls_that_follow_each_other(calls):
    deaths = [
        ReplicaDeath("acoustic", str(number), 0.0, {b"x": (began + lasted, began)})
        for number, (began, lasted) in enumerate(calls)
    ]
    rows = sorted(((began, began + lasted) for began, lasted in calls), key=lambda row: row[1])
    most = max(
        size
        for size in range(len(rows) + 1)
        for some in combinations(rows, size)
        if all(before[1] <= after[0] for before, after in pairwise(some))
    )
    assert consecutive_deaths(b"x", deaths) == most


def log_of(*calls: tuple[bytes, str, float, float]) -> DeathLog:
    """Failed calls in the acoustic stage: (request, replica, start, when the failure was known)."""
    log = DeathLog()
    for digest, replica, began, now in calls:
        log.record(digest, replica, "acoustic", began=began, now=now)
    return log


def test_two_deaths_alone_are_poisonous_and_one_is_not():
    log = log_of((b"x", "a", 0.0, 1.0), (b"x", "a", 0.0, 1.1))
    assert not log.is_suspicious(b"x"), "two segments of one request in one replica"
    log.record(b"x", "b", "acoustic", began=1.2, now=2.0)
    assert log.is_suspicious(b"x")
    assert log.is_poisonous(b"x")
    assert log.poisonous() == {b"x"}


def test_two_deaths_together_are_suspicious_and_the_third_alone_tells_them_apart():
    log = log_of((b"x", "a", 0.0, 1.0), (b"y", "a", 0.0, 1.0), (b"x", "b", 1.1, 2.0), (b"y", "b", 1.1, 2.0))
    assert log.poisonous() == set()
    assert log.is_suspicious(b"x")
    assert log.is_suspicious(b"y")
    log.record(b"x", "c", "acoustic", began=2.1, now=3.0)
    assert log.poisonous() == {b"x"}


def test_only_a_request_in_both_replicas_keeps_another_from_blame():
    log = log_of((b"x", "a", 0.0, 1.0), (b"y", "a", 0.0, 1.0), (b"x", "b", 1.1, 2.0), (b"z", "b", 1.1, 2.0))
    assert log.poisonous() == {b"x"}


def test_stages_are_counted_apart():
    log = log_of((b"x", "a", 0.0, 1.0))
    log.record(b"x", "v", "vocoder", began=1.1, now=2.0)
    assert not log.is_suspicious(b"x")
    log.record(b"x", "w", "vocoder", began=2.1, now=3.0)
    assert log.is_poisonous(b"x")


def test_a_death_is_known_from_the_first_failed_call_and_begun_with_the_last():
    log = log_of((b"x", "a", 0.0, 1.0), (b"x", "b", 0.5, 2.0))
    assert not log.is_suspicious(b"x"), "the call in b began before a's death was known"
    log.record(b"x", "b", "acoustic", began=1.5, now=2.5)
    assert log.is_suspicious(b"x"), "another call in b began after it"


def test_a_completed_request_is_cleared_and_the_others_stay():
    log = log_of((b"x", "a", 0.0, 1.0), (b"y", "a", 0.0, 1.0), (b"x", "b", 1.1, 2.0), (b"y", "b", 1.1, 2.0))
    log.clear(b"y")
    assert not log.is_suspicious(b"y")
    assert log.poisonous() == {b"x"}


def test_old_deaths_and_those_beyond_the_limit_are_forgotten():
    log = log_of((b"x", "a", 0.0, 1.0), (b"x", "b", 1.1, 2.0))
    log.forget_before(1.5)
    assert not log.is_suspicious(b"x")
    log = log_of((b"x", "a", 0.0, 1.0), (b"x", "b", 1.1, 2.0))
    for number in range(MAX_DEATHS - 1):
        log.record(b"y", f"other {number}", "acoustic", began=3.0, now=4.0)
    assert not log.is_suspicious(b"x"), "the oldest went first"
