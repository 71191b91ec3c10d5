"""The quarantine: who is kept from the model, who is not, and for how long. A clock of its own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import AtCapacity, EngineDead, RequestQuarantined
from pipeline.types import AudioChunk, AudioOptions, RefineParams, SamplingParams, SynthesisRequest
from serve.quarantine import CASE, Quarantine, QuarantineConfig

REQUEST = SynthesisRequest("r1", "Some words.", "nova", sampling=SamplingParams(seed=3))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[Quarantine, Clock]:
    clock = Clock()
    return Quarantine(QuarantineConfig(), clock=clock), clock


def die(quarantine: Quarantine, digest: bytes, *replicas: str | None) -> None:
    watching = quarantine.enter(digest)
    case = watching.__enter__()
    for replica in replicas:
        case.saw_death_of(replica)
    with pytest.raises(EngineDead):
        watching.gen.throw(EngineDead("dead"))


def speak(quarantine: Quarantine, digest: bytes) -> None:
    with quarantine.enter(digest):
        pass


def test_a_request_that_ended_two_replicas_alone_is_refused():
    quarantine, clock = make()
    die(quarantine, b"poison", "a", "b")
    assert quarantine.held == 1
    with pytest.raises(RequestQuarantined):
        speak(quarantine, b"poison")
    speak(quarantine, b"another")
    clock.now += 601
    speak(quarantine, b"poison")
    assert quarantine.shown() == {"held": 0, "refused": 1}


def test_one_death_is_no_guilt_however_many_segments_saw_it():
    quarantine, _ = make()
    die(quarantine, b"long", "a", "a", "a", "a")
    speak(quarantine, b"long")
    die(quarantine, b"long", "b")
    speak(quarantine, b"long")


def test_deaths_nobody_could_name_are_one_when_they_are_close_together():
    quarantine, clock = make()
    die(quarantine, b"x", None, None)
    assert quarantine.held == 0
    clock.now += 2
    die(quarantine, b"x", None)
    assert quarantine.held == 1


def test_innocents_of_a_crowd_are_tried_one_at_a_time_and_cleared():
    quarantine, _ = make()
    everybody = [b"poison", *(bytes([number]) for number in range(20))]
    for replica in "ab":
        for member in everybody:
            quarantine.note(member, replica)
    assert quarantine.held == 0, "nobody is guilty in a crowd"
    with quarantine.enter(b"\0"), pytest.raises(AtCapacity), quarantine.enter(b"\1"):
        pass
    speak(quarantine, b"stranger")
    for member in everybody[1:]:
        speak(quarantine, member)
    with pytest.raises(RequestQuarantined):  # nobody else is left: it never got to a third replica
        speak(quarantine, b"poison")


def test_a_suspect_that_sees_a_third_death_is_guilty():
    quarantine, _ = make()
    for replica in "ab":
        for member in (b"poison", b"innocent"):
            quarantine.note(member, replica)
    die(quarantine, b"poison", "c")
    with pytest.raises(RequestQuarantined):
        speak(quarantine, b"poison")
    speak(quarantine, b"innocent")


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_a_poison_request_ends_no_fourth_replica_and_no_innocent_is_ever_held(arrivals):
    """Member 0 ends whichever replica it is in, with whoever asked in the same moment inside as well."""
    quarantine, clock = make()
    deaths = 0
    for number, (company, short) in enumerate(arrivals):
        clock.now += 0.1 if short else 5.0
        replica = str(number)
        inside: list = []
        with ExitStack() as stack:
            for member in range(company + 1):
                watching = quarantine.enter(bytes([member]))
                try:
                    inside.append((watching, watching.__enter__()))
                except RequestQuarantined:
                    assert member == 0
                except AtCapacity:
                    pass
            if any(case._digest == b"\0" for _, case in inside):
                deaths += 1
                for watching, case in inside:
                    case.saw_death_of(replica)
                    with pytest.raises(EngineDead):
                        watching.gen.throw(EngineDead("dead"))
            else:
                for watching, _ in inside:
                    stack.callback(watching.__exit__, None, None, None)
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
            seen.append(CASE.get().heard)
            yield AudioChunk(np.zeros(samples, np.float32), 0, is_last=False)
        seen.append(CASE.get().heard)

    async def listen() -> None:
        async with aclosing(quarantine.stream(inner, REQUEST)) as chunks:
            assert [len(chunk.samples) async for chunk in chunks] == [0, 5]

    asyncio.run(listen())
    assert seen == [False, False, True]
