"""The adapters over handles: what is tried twice, what is not, and what always gets its cancel."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import pytest
from ray.exceptions import ActorDiedError

from pipeline.errors import AtCapacity, EngineDead, NonFiniteOutput, StageUnavailable
from pipeline.types import FinishReason, SamplingParams, StepBlock
from serve.breaker import Breaker, BreakerConfig
from serve.handles import RemoteGenerator
from serve.quarantine import CASE, Quarantine, QuarantineConfig
from tests.factories import make_prompt


def block(first_step: int, finish: FinishReason | None = None) -> StepBlock:
    return StepBlock(np.zeros((1, 8), np.float32), np.zeros((1, 4), np.int64), first_step, finish)


class Replica:
    """What a handle's streaming call gives: items in order, an exception in the place where the replica fails."""

    def __init__(self, items: list[object]) -> None:
        self.items = items
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[object]:
        for item in self.items:
            if isinstance(item, ActorDiedError):
                raise item
            yield item

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A deployment whose calls land on one replica after the other."""

    def __init__(self, *replicas: list[object]) -> None:
        self.replicas = [Replica(items) for items in replicas]
        self.timeouts_s: list[float] = []
        self.generate = self

    def options(self, *, stream: bool) -> "Handle":
        assert stream
        return self

    def remote(self, prompt: object, sampling: object, timeout_s: float, admitted: bool, trace: str) -> Replica:
        self.timeouts_s.append(timeout_s)
        return self.replicas[len(self.timeouts_s) - 1]


def listen(handle: Handle) -> list[StepBlock]:
    async def collect() -> list[StepBlock]:
        stream = RemoteGenerator(handle).generate(make_prompt(), SamplingParams(), timeout_s=5)
        async with aclosing(stream) as blocks:
            return [one async for one in blocks]

    return asyncio.run(collect())


DEATHS = [ActorDiedError(), EngineDead("the loop died")]


@pytest.mark.parametrize("death", DEATHS, ids=["process", "engine"])
def test_a_replica_that_dies_before_its_first_block_is_replaced_by_another(death):
    handle = Handle([death], [block(0), block(1, FinishReason.EOS)])
    assert [one.first_step for one in listen(handle)] == [0, 1]
    assert handle.timeouts_s[1] <= handle.timeouts_s[0] <= 5, "the time left goes on running"
    assert all(replica.cancelled for replica in handle.replicas)


@pytest.mark.parametrize("death", DEATHS, ids=["process", "engine"])
def test_what_has_been_heard_is_never_begun_again(death):
    handle = Handle([block(0), death], [block(0, FinishReason.EOS)])
    with pytest.raises(EngineDead):
        listen(handle)
    assert len(handle.timeouts_s) == 1


@pytest.mark.parametrize("death", DEATHS, ids=["process", "engine"])
def test_steps_made_before_any_audio_are_made_again_and_handed_on_once(death):
    def speak(*, heard: bool) -> list[int]:
        quarantine = Quarantine(QuarantineConfig())
        handle = Handle([block(0), block(1), death], [block(0), block(1), block(2, FinishReason.EOS)])

        async def collect() -> list[int]:
            with quarantine.enter(b"digest") as case:
                CASE.set(case)
                case.heard = heard
                stream = RemoteGenerator(handle).generate(make_prompt(), SamplingParams(), timeout_s=5)
                async with aclosing(stream) as blocks:
                    return [one.first_step async for one in blocks]

        return asyncio.run(collect())

    assert speak(heard=False) == [0, 1, 2]
    with pytest.raises(EngineDead):
        speak(heard=True)


def test_a_second_try_needs_time_left():
    handle = Handle([ActorDiedError()], [block(0, FinishReason.EOS)])

    async def collect() -> None:
        async with aclosing(RemoteGenerator(handle).generate(make_prompt(), SamplingParams(), timeout_s=0)) as blocks:
            await anext(blocks)

    with pytest.raises(EngineDead):
        asyncio.run(collect())
    assert len(handle.timeouts_s) == 1


def test_an_open_breaker_asks_no_replica():
    handle = Handle([block(0, FinishReason.EOS)])
    breaker = Breaker("acoustic", BreakerConfig(failures=1))
    with pytest.raises(EngineDead), breaker.watch():
        raise EngineDead("dead")

    async def collect() -> None:
        await anext(RemoteGenerator(handle, breaker).generate(make_prompt(), SamplingParams(), timeout_s=5))

    with pytest.raises(StageUnavailable):
        asyncio.run(collect())
    assert handle.timeouts_s == []


def test_two_deaths_are_enough():
    handle = Handle([ActorDiedError()], [ActorDiedError()])
    with pytest.raises(EngineDead):
        listen(handle)


@pytest.mark.parametrize("refusal", [AtCapacity("full", retry_after_s=2), NonFiniteOutput("NaN")])
def test_refusals_and_broken_rows_are_not_tried_again(refusal):
    handle = Handle([refusal], [block(0, FinishReason.EOS)])
    with pytest.raises(type(refusal)):
        listen(handle)
    assert len(handle.timeouts_s) == 1


def test_a_reader_that_leaves_cancels_the_call():
    handle = Handle([block(0), block(1, FinishReason.EOS)])

    async def leave() -> None:
        async with aclosing(RemoteGenerator(handle).generate(make_prompt(), SamplingParams(), timeout_s=5)) as blocks:
            await anext(blocks)

    asyncio.run(leave())
    assert handle.replicas[0].cancelled
