"""Takes: a segment that ends impossibly early is rolled again once; what is good passes untouched; time decides nothing."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cache.cache import CodeCache
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.key import Kept
from pipeline.config import EngineConfig
from pipeline.engine.engine import Engine
from pipeline.errors import DeadlineExceeded, NotCached
from pipeline.takes.takes import ROLLED_AGAIN, TOO_SHORT, Takes
from pipeline.types import CacheControl, CacheMode, FinishReason, Head, Prompt, SamplingParams, SeedMode, StepBlock
from tests.support.factories import collect, make_prompt

FIRST_STEPS = 60  # ChatTTS's own: 8 of the first chunk and 52 of look-ahead


class Rolls:
    """protocols.CodeGenerator: take n has lengths[n] steps, whose codes are n."""

    def __init__(self, *lengths: int, block: int = 4, finish: FinishReason = FinishReason.EOS) -> None:
        self.lengths = lengths
        self.block = block
        self.finish = finish
        self.asked: list[tuple[int, bool]] = []
        self.generated = 0

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        self.asked.append((sampling.attempt, admitted))
        steps = self.lengths[sampling.attempt]
        for first in range(0, steps, self.block):
            await asyncio.sleep(0)
            count = min(self.block, steps - first)
            self.generated += count
            codes = np.full((count, 4), sampling.attempt, np.int64)
            last = first + count == steps
            yield StepBlock(np.zeros((count, 8), np.float32), codes, first, self.finish if last else None)


PLAIN = SamplingParams()


def spoken(rolls: Rolls, least: int, sampling: SamplingParams = PLAIN, head: Head = Head.CODE):
    """The lengths and the take that arrive, and the warnings."""

    async def listen():
        takes = Takes(rolls, sampling, time.monotonic() + 100, (FIRST_STEPS,))
        prompt = replace(make_prompt(head=head), least_steps=least)
        async with aclosing(takes.steps(prompt, admitted=False)) as steps:
            blocks = [block async for block in steps]
        assert [block.first_step for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
        assert [block.finish for block in blocks] == [*[None] * (len(blocks) - 1), rolls.finish]
        (take,) = {int(code) for block in blocks for code in block.codes.flat}
        return blocks[-1].stop, take, dict(takes.warnings)

    return asyncio.run(listen())


@given(st.integers(1, 150), st.integers(1, 150), st.integers(0, 200), st.integers(1, 70))
def test_the_take_that_is_spoken_depends_on_its_length_alone(first, second, least, block):
    rolls = Rolls(first, second, block=block)
    stop, take, warnings = spoken(rolls, least)
    is_rolled = first < min(least, FIRST_STEPS)
    assert (stop, take) == ((second, 1) if is_rolled else (first, 0))
    assert warnings == ({ROLLED_AGAIN: 1} if is_rolled else {}) | ({TOO_SHORT: 1} if stop < least else {})
    assert rolls.asked == ([(0, False), (1, True)] if is_rolled else [(0, False)]), (
        "at most one more, on the first one's ticket"
    )


def test_draws_of_upstream_and_takes_that_were_cut_are_not_rolled_again():
    assert spoken(Rolls(3), 40, SamplingParams(seed_mode=SeedMode.UPSTREAM)) == (3, 0, {TOO_SHORT: 1})
    assert spoken(Rolls(3, finish=FinishReason.LENGTH), 40) == (3, 0, {TOO_SHORT: 1})
    assert spoken(Rolls(3), 0, head=Head.TEXT) == (3, 0, {})


def test_no_more_is_kept_back_than_decides():
    async def first_block(least: int) -> int:
        rolls = Rolls(400)
        takes = Takes(rolls, SamplingParams(), time.monotonic() + 100, (FIRST_STEPS,))
        async with aclosing(takes.steps(replace(make_prompt(), least_steps=least), admitted=False)) as steps:
            await anext(steps)
            assert takes.running.is_set()
        return rolls.generated

    assert [asyncio.run(first_block(least)) for least in (0, 4, 20, FIRST_STEPS, 300)] == [4, 4, 20, FIRST_STEPS, FIRST_STEPS]


def test_the_others_may_begin_while_steps_are_kept_back():
    async def running_after_a_step() -> bool:
        takes = Takes(Rolls(2, 400, block=1), SamplingParams(), time.monotonic() + 100, (FIRST_STEPS,))
        async with aclosing(takes.steps(replace(make_prompt(), least_steps=50), admitted=False)) as steps:
            arriving = asyncio.ensure_future(anext(steps))
            await takes.running.wait()
            assert not arriving.done()
            await arriving
        return takes.running.is_set()

    assert asyncio.run(running_after_a_step())


def test_a_second_take_has_no_more_time_than_the_request():
    class Slow(Rolls):
        async def generate(self, *args: object, **more: object) -> AsyncGenerator[StepBlock, None]:
            async for block in super().generate(*args, **more):
                yield block
            takes._deadline = time.monotonic()

    takes = Takes(Slow(2, 100), SamplingParams(), time.monotonic() + 100, (FIRST_STEPS,))

    async def listen() -> None:
        async with aclosing(takes.steps(replace(make_prompt(), least_steps=50), admitted=False)) as steps:
            async for _ in steps:
                pass

    with pytest.raises(DeadlineExceeded):
        asyncio.run(listen())


def test_a_second_take_comes_from_the_cache_too_or_not_at_all():
    """A request that accepts cached speech only starts no second roll."""
    prompt = replace(make_prompt(), least_steps=50)

    async def say(model: CachedModel, mode: CacheMode) -> int:
        cached = model.for_request(CacheControl(mode, "t"))
        takes = Takes(cached, SamplingParams(seed=3), time.monotonic() + 100, (FIRST_STEPS,))
        async with aclosing(takes.steps(prompt, admitted=False)) as steps:
            return [block async for block in steps][-1].stop

    class Printed(Rolls):
        async def generate(self, *args: object, **more: object) -> AsyncGenerator[StepBlock, None]:
            async for block in super().generate(*args, **more):
                yield replace(block, fingerprint="f" if block.finish else "")

    async def check() -> None:
        rolls = Printed(2, 80)
        model = CachedModel(rolls, CodeCache(1 << 20), kept=Kept.HIDDEN, fingerprint="f")
        assert await say(model, CacheMode.DEFAULT) == 80
        assert await say(model, CacheMode.ONLY_IF_CACHED) == 80
        assert len(rolls.asked) == 2, "both takes were in the cache"
        forgetful = CachedModel(rolls, CodeCache(1 << 20), kept=Kept.HIDDEN, fingerprint="f")
        first = forgetful.for_request(CacheControl(CacheMode.DEFAULT, "t"))
        async with aclosing(first.generate(prompt, SamplingParams(seed=3), timeout_s=9)) as steps:
            assert [block async for block in steps][-1].stop == 2
        with pytest.raises(NotCached):
            await say(forgetful, CacheMode.ONLY_IF_CACHED)

    asyncio.run(check())


@pytest.mark.slow
def test_the_same_seed_rolls_the_same_steps_alone_and_in_a_crowd(demo):
    """Random weights end anywhere, so a high least number of steps rolls most of these segments again."""
    prompts = [replace(make_prompt(number=number, max_steps=100), least_steps=90) for number in range(8)]

    async def say(engine: Engine, number: int):
        takes = Takes(
            engine, SamplingParams(seed=number, temperature=1.0, top_p=1.0, top_k=626), time.monotonic() + 100, (FIRST_STEPS,)
        )
        return await collect(takes.steps(prompts[number], admitted=True)), dict(takes.warnings)

    async def crowd(engine: Engine):
        return await asyncio.gather(*(say(engine, number) for number in range(len(prompts))))

    settings = {"slots": 4, "threads": 1, "max_prompt": 64, "max_steps": 128}
    with closing(Engine(EngineConfig.model_validate(settings), demo)) as engine:
        together = asyncio.run(crowd(engine))
        alone = [asyncio.run(say(engine, number)) for number in range(len(prompts))]
    assert all(one.equals(other) and said == again for (one, said), (other, again) in zip(together, alone, strict=True))
    assert 2 <= sum(ROLLED_AGAIN in warnings for _, warnings in alone) < len(prompts), "some are rolled again, some are not"
