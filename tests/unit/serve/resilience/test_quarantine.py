"""The quarantine: who is kept from the model, who is not, and for how long. A clock of its own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import AtCapacity, EngineDead, RequestQuarantined
from pipeline.types import AudioChunk, AudioOptions, RefineParams, SamplingParams, SynthesisRequest
from serve.config.policies import QuarantineConfig
from serve.resilience.death_log import ReplicaDeath, consecutive_deaths
from serve.resilience.quarantine import CURRENT_REQUEST, Quarantine, TrackedRequest
from tests.support.clock import HeldClock

REQUEST = SynthesisRequest("r1", "Some words.", "nova", sampling=SamplingParams(seed=3))
STAGES = ("text", "acoustic", "vocoder")


def make() -> tuple[Quarantine, HeldClock]:
    clock = HeldClock(0.0)
    return Quarantine(QuarantineConfig(), clock=clock), clock


def fail(watching, error: Exception) -> None:
    with pytest.raises(type(error)):
        watching.gen.throw(error)


def die(quarantine: Quarantine, clock: HeldClock, digest: bytes, *replicas: str, stage: str = "acoustic") -> None:
    """A request whose calls fail, one after the other."""
    watching = quarantine.admit(digest)
    tracked = watching.__enter__()
    for replica in replicas:
        began, clock.now = clock.now, clock.now + 0.1
        tracked.record_death(replica, stage, began)
    fail(watching, EngineDead("dead"))


def crowd(quarantine: Quarantine, clock: HeldClock, members: list[bytes], *replicas: str) -> None:
    """Requests that are inside the same replicas, one after the other."""
    for replica in replicas:
        began, clock.now = clock.now, clock.now + 0.1
        for member in members:
            quarantine.record_death(member, replica, "acoustic", began)


def speak(quarantine: Quarantine, digest: bytes) -> None:
    with quarantine.admit(digest):
        pass


def test_a_request_that_ended_two_replicas_alone_is_refused():
    quarantine, clock = make()
    die(quarantine, clock, b"poison", "a", "b")
    assert quarantine.quarantined == 1
    with pytest.raises(RequestQuarantined):
        speak(quarantine, b"poison")
    speak(quarantine, b"another")
    clock.now += 601
    speak(quarantine, b"poison")
    assert quarantine.summary() == {"quarantined": 0, "refused": 1}


def test_one_death_is_no_guilt_however_many_segments_saw_it():
    quarantine, clock = make()
    die(quarantine, clock, b"long", "a", "a", "a", "a")
    speak(quarantine, b"long")
    die(quarantine, clock, b"long", "b")
    speak(quarantine, b"long")


def test_deaths_in_different_stages_are_not_added_up():
    quarantine, clock = make()
    for stage in STAGES:
        die(quarantine, clock, b"unlucky", f"of {stage}", stage=stage)
    assert quarantine.quarantined == 0
    die(quarantine, clock, b"unlucky", "another vocoder", stage="vocoder")
    assert quarantine.quarantined == 1


def test_what_was_begun_before_a_death_was_known_belongs_to_it():
    quarantine, clock = make()
    clock.now = 2.0
    for replica, began in (("a", 0.0), ("b", 0.5), ("c", 1.9)):
        quarantine.record_death(b"wide", replica, "acoustic", began)
    assert quarantine.quarantined == 0
    speak(quarantine, b"wide")


def test_a_second_try_beside_older_work_in_the_same_replica_is_a_second_death():
    quarantine, clock = make()
    clock.now = 1.0
    quarantine.record_death(b"poison", "a", "acoustic", 0.0)
    clock.now = 2.0
    quarantine.record_death(b"poison", "b", "acoustic", 0.5)  # a segment that was there already
    assert quarantine.quarantined == 0
    quarantine.record_death(b"poison", "b", "acoustic", 1.1)  # the one that was tried again
    assert quarantine.quarantined == 1


def test_who_was_tried_again_beside_the_culprit_is_not_taken_for_it():
    quarantine, clock = make()
    clock.now = 1.0
    quarantine.record_death(b"poison", "a", "acoustic", 0.0)
    quarantine.record_death(b"innocent", "a", "acoustic", 0.0)
    clock.now = 2.0
    quarantine.record_death(b"poison", "b", "acoustic", 0.0)  # two segments at once: for the poison that is one death
    quarantine.record_death(b"innocent", "b", "acoustic", 1.1)
    assert quarantine.quarantined == 0
    speak(quarantine, b"innocent")


def test_innocents_of_a_crowd_are_tried_one_at_a_time_and_cleared():
    quarantine, clock = make()
    everybody = [b"poison", *(bytes([number]) for number in range(20))]
    crowd(quarantine, clock, everybody, "a", "b")
    assert quarantine.quarantined == 0, "nobody is guilty in a crowd"
    with quarantine.admit(b"\0"), pytest.raises(AtCapacity), quarantine.admit(b"\1"):
        pass
    speak(quarantine, b"stranger")
    for member in everybody[1:]:
        speak(quarantine, member)
    with pytest.raises(RequestQuarantined):  # nobody else is left: it never got to a third replica
        speak(quarantine, b"poison")


def test_a_suspect_that_sees_a_third_death_is_poisonous():
    quarantine, clock = make()
    crowd(quarantine, clock, [b"poison", b"innocent"], "a", "b")
    die(quarantine, clock, b"poison", "c")
    with pytest.raises(RequestQuarantined):
        speak(quarantine, b"poison")
    speak(quarantine, b"innocent")


@st.composite
def machines(draw) -> list[tuple[float, bytes, str, str, float]]:
    """What is told of a machine's death: at which moment, of a request inside which replica of which stage, since when.

    Its replicas of one stage die at one moment, those of the next stage perhaps much later; of each death its requests hear in
    any order. There are fewer digests than calls: a request has several segments, and others ask the same.
    """
    apart = draw(st.sampled_from((0.0, 5.0)))
    told = []
    for number, stage in enumerate(STAGES):
        died = 1.0 + number * apart
        calls = st.tuples(st.floats(0.01, 3), st.integers(0, 3), st.integers(1, 3), st.floats(0, 1))
        for later, digest, replica, age in draw(st.lists(calls, max_size=6)):
            told.append((died + later, bytes([digest]), f"{stage} {replica}", stage, died - age))
    return sorted(told, key=lambda note: note[0])


@given(machines())
def test_a_machines_death_quarantines_nobody_and_tries_nobody(told):
    quarantine, clock = make()
    for clock.now, digest, replica, stage, began in told:
        quarantine.record_death(digest, replica, stage, began)
        assert quarantine.quarantined == 0
    with ExitStack() as stack:
        for digest in {digest for _, digest, *_ in told}:
            stack.enter_context(quarantine.admit(digest))  # all at once: RequestQuarantined or AtCapacity would end it


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=7))
def test_the_deaths_that_count_are_the_most_calls_that_followed_on_each_other(calls):
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


@given(st.lists(st.tuples(st.sampled_from(STAGES), st.integers(1, 4)), max_size=8))
def test_a_deadly_request_that_comes_alone_ends_replicas_of_a_stage_twice_at_most(visits):
    """Each visit: the stage it ends, and with how many of its segments at once; all are tried a second time."""
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
def test_a_poison_request_ends_no_fourth_replica_and_no_innocent_is_ever_held(arrivals):
    """Member 0 ends whichever replica it is in, with whoever asked in the same moment inside as well, perhaps twice."""
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


def test_a_digest_is_of_what_reaches_the_model_and_of_this_process():
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
    assert all(quarantine.digest(one) == base for one in same)
    assert len({base, *(quarantine.digest(one) for one in other)}) == len(other) + 1
    assert make()[0].digest(REQUEST) != base
    assert b"words" not in repr(vars(quarantine)).encode()


def test_a_stream_is_heard_from_its_first_sample_on():
    quarantine, _ = make()
    seen = []

    async def inner(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        for samples in (0, 5):
            seen.append(CURRENT_REQUEST.get().has_sent_audio)
            yield AudioChunk(np.zeros(samples, np.float32), 0, is_last=False)
        seen.append(CURRENT_REQUEST.get().has_sent_audio)

    async def listen() -> None:
        async with aclosing(quarantine.stream(inner, REQUEST)) as chunks:
            assert [len(chunk.samples) async for chunk in chunks] == [0, 5]

    asyncio.run(listen())
    assert seen == [False, False, True]
