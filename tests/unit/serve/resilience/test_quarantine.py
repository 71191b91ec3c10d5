"""The quarantine and its log of deaths: which request is to blame, which are refused, and for how long. On a held clock."""

from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import AtCapacity, EngineDead, RequestQuarantined
from pipeline.types import AudioOptions, RefineParams, SamplingParams, SynthesisRequest
from serve.resilience.death_log import MAX_DEATHS, DeathLog, ReplicaDeath, consecutive_deaths
from serve.resilience.quarantine import Quarantine, TrackedRequest
from tests.support.clock import HeldClock

REQUEST = SynthesisRequest("r1", "Some words.", "nova", sampling=SamplingParams(seed=3))
STAGES = ("text", "acoustic", "vocoder")


def make() -> tuple[Quarantine, HeldClock]:
    clock = HeldClock(0.0)
    return Quarantine(clock=clock), clock


def fail(watching, error: Exception) -> None:
    with pytest.raises(type(error)):
        watching.gen.throw(error)


def crash(quarantine: Quarantine, clock: HeldClock, digest: bytes, *replicas: str, stage: str = "acoustic") -> None:
    """A request whose calls fail one after the other, each with its replica."""
    watching = quarantine.admit(digest)
    tracked = watching.__enter__()
    for replica in replicas:
        began, clock.now = clock.now, clock.now + 0.1
        tracked.record_death(replica, stage, began)
    fail(watching, EngineDead("dead"))


def run_together(quarantine: Quarantine, clock: HeldClock, members: list[bytes], *replicas: str) -> None:
    """Requests that run in the same replicas when these crash, one after the other."""
    for replica in replicas:
        began, clock.now = clock.now, clock.now + 0.1
        for member in members:
            quarantine.record_death(member, replica, "acoustic", began)


def complete(quarantine: Quarantine, digest: bytes) -> None:
    with quarantine.admit(digest):
        pass


def test_a_request_that_crashed_two_replicas_alone_is_refused():
    quarantine, clock = make()
    crash(quarantine, clock, b"poison", "a", "b")
    assert quarantine.quarantined == 1
    with pytest.raises(RequestQuarantined):
        complete(quarantine, b"poison")
    complete(quarantine, b"another")
    clock.now += 601
    complete(quarantine, b"poison")
    assert quarantine.summary() == {"quarantined": 0, "refused": 1}


def test_requests_implicated_together_are_retried_one_at_a_time_and_cleared():
    quarantine, clock = make()
    members = [b"poison", *(bytes([number]) for number in range(20))]
    run_together(quarantine, clock, members, "a", "b")
    assert quarantine.quarantined == 0, "no request is blamed while several were inside both replicas"
    with quarantine.admit(b"\0"), pytest.raises(AtCapacity), quarantine.admit(b"\1"):
        pass
    complete(quarantine, b"unrelated")
    for member in members[1:]:
        complete(quarantine, member)
    with pytest.raises(RequestQuarantined):  # the only one left: it reached no third replica
        complete(quarantine, b"poison")


@st.composite
def machines(draw) -> list[tuple[float, bytes, str, str, float]]:
    """Failed calls after the loss of a machine: (time, request, replica, stage, start of the call).

    Its replicas of one stage die at one moment, those of the next stage perhaps much later; its requests fail in
    any order. There are fewer digests than calls: a request has several segments, and some requests are equal.
    """
    apart = draw(st.sampled_from((0.0, 5.0)))
    failed_calls = []
    for number, stage in enumerate(STAGES):
        died = 1.0 + number * apart
        calls = st.tuples(st.floats(0.01, 3), st.integers(0, 3), st.integers(1, 3), st.floats(0, 1))
        for later, digest, replica, age in draw(st.lists(calls, max_size=6)):
            failed_calls.append((died + later, bytes([digest]), f"{stage} {replica}", stage, died - age))
    return sorted(failed_calls, key=lambda note: note[0])


@given(machines())
def test_the_loss_of_a_machine_blames_no_request(failed_calls):
    quarantine, clock = make()
    for clock.now, digest, replica, stage, began in failed_calls:
        quarantine.record_death(digest, replica, stage, began)
        assert quarantine.quarantined == 0
    with ExitStack() as stack:
        for digest in {digest for _, digest, *_ in failed_calls}:
            stack.enter_context(quarantine.admit(digest))  # all at once: RequestQuarantined or AtCapacity would end it


@given(st.lists(st.tuples(st.sampled_from(STAGES), st.integers(1, 4)), max_size=8))
def test_a_poisonous_request_alone_crashes_at_most_two_replicas_of_a_stage(visits):
    """Each visit: the stage whose replica crashes, and how many segments run there; all are retried once."""
    quarantine, clock = make()
    times = dict.fromkeys(STAGES, 0)
    for visit, (stage, segments) in enumerate(visits):
        watching = quarantine.admit(b"poison")
        try:
            tracked = watching.__enter__()
        except RequestQuarantined:
            assert max(times.values()) == 2
            continue
        for attempt in range(2):
            times[stage] += 1
            began, clock.now = clock.now, clock.now + 0.1
            for segment in range(segments):
                tracked.record_death(f"{visit} {attempt} {segment}", stage, began)
            if tracked.is_poisonous:
                break
        fail(watching, EngineDead("dead"))
    assert max(times.values()) <= 2


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=40))
def test_a_poisonous_request_crashes_at_most_three_replicas_and_no_other_is_refused(arrivals):
    """Member 0 crashes any replica it runs in; the others run beside it, sometimes in the retry as well."""
    quarantine, clock = make()
    deaths = 0
    for number, (company, short, together) in enumerate(arrivals):
        clock.now += 0.1 if short else 5.0
        inside: list = []
        for member in range(company + 1):
            watching = quarantine.admit(bytes([member]))
            try:
                inside.append((member, watching, watching.__enter__()))
            except RequestQuarantined:
                assert member == 0
            except AtCapacity:
                pass
        tracked_requests: dict[int, TrackedRequest] = {member: tracked for member, _, tracked in inside}
        dead: set[int] = set()
        for attempt in range(2):
            there = set(tracked_requests) if attempt == 0 or together else {0} & set(tracked_requests)
            if 0 not in there or (attempt and tracked_requests[0].is_poisonous):
                dead.clear()
                break
            deaths += 1
            began, clock.now = clock.now, clock.now + 0.1
            for member in there:
                tracked_requests[member].record_death(f"{number} {attempt}", "acoustic", began)
            dead = there
        for member, watching, _ in inside:
            if member == 0 or member in dead:
                fail(watching, EngineDead("dead"))
            else:
                watching.__exit__(None, None, None)
    assert deaths <= 3


def test_a_digest_depends_on_what_reaches_the_model_and_on_the_process():
    quarantine, _ = make()
    base = quarantine.digest(REQUEST)
    same = [
        replace(REQUEST, request_id="r2"),
        replace(REQUEST, sampling=SamplingParams(seed=4)),
        replace(REQUEST, timeout_s=1.0),
        replace(REQUEST, speed=2.0, audio=AudioOptions(sample_rate=8000)),
    ]
    other = [
        replace(REQUEST, text="Some words"),
        replace(REQUEST, voice="echo"),
        replace(REQUEST, sampling=SamplingParams(seed=3, temperature=0.5)),
        replace(REQUEST, refine=RefineParams()),
        replace(REQUEST, text="\ud83d"),
    ]
    assert all(quarantine.digest(request) == base for request in same)
    assert len({base, *(quarantine.digest(request) for request in other)}) == len(other) + 1
    assert make()[0].digest(REQUEST) != base
    assert b"words" not in repr(vars(quarantine)).encode()


# The log.


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


def log_of(calls: str) -> DeathLog:
    """Failed calls: request, replica, start and when the failure was known, of the acoustic stage if none is named."""
    log = DeathLog()
    for call in calls.split(", "):
        digest, replica, began, now, *stage = call.split()
        log.record(digest.encode(), replica, *stage or ["acoustic"], began=float(began), now=float(now))
    return log


TOGETHER = "x a 0 1, y a 0 1, x b 1.1 2, y b 1.1 2"


@pytest.mark.parametrize(
    ("calls", "suspicious", "poisonous"),
    [
        ("x a 0 1, x a 0 1.1", "", ""),  # two segments of one request in one replica
        ("x a 0 1, x a 0 1.1, x b 1.2 2", "x", "x"),
        (TOGETHER, "xy", ""),
        (f"{TOGETHER}, x c 2.1 3", "xy", "x"),  # the third alone tells them apart
        ("x a 0 1, y a 0 1, x b 1.1 2, z b 1.1 2", "x", "x"),  # neither was in both
        ("x a 0 1, y a 0 1, x b 0 2, y b 1.1 2", "y", ""),  # tried again beside another segment of the poisonous one
        ("x a 0 1, x v 1.1 2 vocoder", "", ""),
        ("x a 0 1, x v 1.1 2 vocoder, x w 2.1 3 vocoder", "x", "x"),
        ("x a 0 1, x b 0.5 2", "", ""),  # begun before the first death was known
        ("x a 0 1, x b 0.5 2, x b 1.5 2.5", "x", "x"),
    ],
)
def test_suspicion_and_blame_of_requests(calls: str, suspicious: str, poisonous: str):
    log = log_of(calls)
    assert "".join(digest for digest in "xyz" if log.is_suspicious(digest.encode())) == suspicious
    assert log.poisonous() == {digest.encode() for digest in poisonous}
    assert all(log.is_poisonous(digest) for digest in log.poisonous())


def test_what_is_cleared_old_or_beyond_the_limit_is_forgotten():
    log = log_of(TOGETHER)
    log.clear(b"y")
    assert not log.is_suspicious(b"y")
    assert log.poisonous() == {b"x"}
    log.forget_before(1.5)
    assert not log.is_suspicious(b"x")
    log = log_of(TOGETHER)
    for number in range(MAX_DEATHS - 1):
        log.record(b"y", f"other {number}", "acoustic", began=3.0, now=4.0)
    assert not log.is_suspicious(b"x"), "the oldest went first"
