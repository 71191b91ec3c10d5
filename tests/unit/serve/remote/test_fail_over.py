"""Fail-over: whatever dies whenever, a segment goes on at the exact step and sample, or is visibly cut."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, ActorUnavailableError

from pipeline.errors import EngineDead, SynthesisError
from pipeline.types import Admission, FinishReason, Lane, Position, Prompt, SamplingParams, SchedulingParams, StepBlock
from serve.observability.stage_timings import CURRENT_TIMINGS, StageTimings
from serve.remote import remote_stages
from serve.remote.remote_stages import RemoteGenerator
from serve.remote.taken_over import MOST_FAIL_OVERS
from serve.resilience.quarantine import CURRENT_REQUEST, Quarantine
from tests.support.factories import make_prompt

STEPS, WIDTH, SAMPLES_PER_STEP, DELAY = 24, 3, 5, 4
HIDDEN = np.random.default_rng(1).standard_normal((STEPS, WIDTH)).astype(np.float32)
CODES = np.random.default_rng(2).integers(0, 600, (STEPS, 4))
SAMPLES = np.random.default_rng(3).standard_normal(STEPS * SAMPLES_PER_STEP).astype(np.float32)

Items = list[StepBlock | Exception]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(remote_stages, "BACK_OFF_S", 0.0)


def spoken(cuts: Sequence[int], *, samples: bool, build: str = "a") -> Items:
    """The sequence in blocks that end at these steps, as a replica sends them; samples lag behind their steps."""
    blocks: Items = []
    begin = heard = 0
    for stop in sorted({*cuts, STEPS}):
        ready = (STEPS if stop == STEPS else max(0, stop - DELAY)) * SAMPLES_PER_STEP
        blocks.append(
            StepBlock(
                HIDDEN[begin:stop],
                CODES[begin:stop],
                begin,
                FinishReason.EOS if stop == STEPS else None,
                Admission(0.1, 0.2) if begin == 0 else None,
                build if begin == 0 or stop == STEPS else "",
                SAMPLES[heard:ready] if samples else None,
                heard if samples else 0,
            )
        )
        begin, heard = stop, ready
    return blocks


class Replicas:
    """A handle whose calls land on one replica after the other."""

    def __init__(self, *takes: Items) -> None:
        self.takes = list(takes)
        self.asked: list[tuple[Prompt, bool]] = []
        self.cancelled = 0
        self.generate = self

    def options(self, *, stream: bool) -> "Replicas":
        return self

    def remote(self, prompt: Prompt, sampling: object, timeout_s: float, admitted: bool, trace: str) -> "Replicas":
        self.asked.append((prompt, admitted))
        return self

    async def __aiter__(self) -> AsyncIterator[object]:
        for item in self.takes[len(self.asked) - 1]:
            await asyncio.sleep(0)
            if isinstance(item, Exception) and not isinstance(item, SynthesisError):
                raise item
            yield item

    def cancel(self) -> None:
        self.cancelled += 1


def listen(replicas: Replicas, prompt: Prompt | None = None, timings: StageTimings | None = None) -> list[StepBlock]:
    async def collect() -> list[StepBlock]:
        with Quarantine().admit(b"digest") as tracked:
            CURRENT_REQUEST.set(tracked)
            CURRENT_TIMINGS.set(timings)
            stream = RemoteGenerator(replicas).generate(prompt or make_prompt(), SamplingParams(), timeout_s=5)
            async with aclosing(stream) as blocks:
                return [block async for block in blocks]

    return asyncio.run(collect())


def is_whole(blocks: list[StepBlock], *, samples: bool) -> bool:
    """Every step and sample once and in order, and one end."""
    at = Position()
    for block in blocks:
        assert block.first_step == at.step
        assert not samples or block.first_sample == at.sample
        at = block.end
    assert [block.finish is not None for block in blocks] == [False] * (len(blocks) - 1) + [True]
    codes = np.concatenate([block.codes for block in blocks])
    hidden = np.concatenate([block.hidden for block in blocks])
    heard = np.concatenate([block.samples for block in blocks]) if samples else SAMPLES
    return np.array_equal(codes, CODES) and np.array_equal(hidden, HIDDEN) and np.array_equal(heard, SAMPLES)


def deaths(number: int) -> Iterator[Exception]:
    """Each of another replica."""
    for one in range(number):
        yield (EngineDead("the loop died"), ActorUnavailableError("gone", bytes([one]) * 16), ActorDiedError())[one % 3]


cuts = st.lists(st.integers(1, STEPS - 1), min_size=1, max_size=8)


lives = st.lists(st.tuples(cuts, st.integers(0, 8)), min_size=1, max_size=MOST_FAIL_OVERS)


@given(lives=lives, last=cuts, samples=st.booleans())
def test_a_segment_goes_on_exactly_wherever_its_replicas_die(lives, last, samples):
    """Every replica but the last dies after any of its blocks, the first one after one at least."""
    takes: list[Items] = []
    for (blocks, sent), death in zip(lives, deaths(len(lives)), strict=True):
        take = spoken(blocks, samples=samples)
        takes.append([*take[: min(max(sent, not takes), len(take) - 1)], death])
    replicas = Replicas(*takes, spoken(last, samples=samples))
    assert is_whole(listen(replicas), samples=samples)
    assert replicas.cancelled == len(replicas.asked) == len(takes) + 1, "every call is closed"


def test_one_that_is_listened_to_is_urgent_and_has_its_place():
    prompt = replace(make_prompt(), scheduling=SchedulingParams(Lane.STANDARD, first_audio_s=3.0))
    replicas = Replicas([*spoken([8], samples=False)[:1], ActorDiedError()], spoken([8], samples=False))
    listen(replicas, prompt)
    (first, admitted), (second, again) = replicas.asked
    assert (first, admitted) == (prompt, False)
    assert (second.scheduling.lane, second.scheduling.first_audio_s, again) == (Lane.INTERACTIVE, None, True)
    bulk = replace(make_prompt(), scheduling=SchedulingParams(Lane.BULK))
    replicas = Replicas([*spoken([8], samples=False)[:1], ActorDiedError()], spoken([8], samples=False))
    listen(replicas, bulk)
    assert replicas.asked[1][0].scheduling.lane is Lane.BULK


def test_another_build_does_not_go_on_with_it():
    begun = spoken([8, 16], samples=False)[:2]
    replicas = Replicas([*begun, ActorDiedError()], spoken([8], samples=False, build="b"), spoken([8], samples=False))
    with pytest.raises(EngineDead, match="another build"):
        listen(replicas)
    assert len(replicas.asked) == 2


def test_before_the_first_step_any_build_may_speak():
    replicas = Replicas([ActorDiedError()], spoken([8], samples=False, build="b"))
    assert is_whole(listen(replicas), samples=False)


def test_it_ends_with_the_last_replica_it_may_ask():
    begun = [*spoken([8], samples=False)[:1], ActorDiedError()]
    replicas = Replicas(*[begun] * (2 + MOST_FAIL_OVERS))
    with pytest.raises(EngineDead):
        listen(replicas)
    assert len(replicas.asked) == 1 + MOST_FAIL_OVERS


def test_what_it_took_is_measured():
    timings = StageTimings()
    begun = spoken([8, 12], samples=False)[:2]
    listen(Replicas([*begun, ActorDiedError()], spoken([6], samples=False)), timings=timings)
    assert (timings.fail_overs, timings.repeated_steps) == (1, 12)
    assert timings.interrupted_s >= 0
    assert timings.steps == STEPS, "no step counts twice"
    assert timings.summary()["fail_overs"] == 1
    quiet = StageTimings()
    listen(Replicas(spoken([8], samples=False)), timings=quiet)
    assert "fail_overs" not in quiet.summary()
