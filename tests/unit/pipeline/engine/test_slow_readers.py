"""Readers that stop and go on while slots change hands: each hears its own steps, all of them, and no other's."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, aclosing, closing
from dataclasses import replace

import numpy as np
import pytest

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.device import DeviceRunner
from pipeline.engine.engine import Engine, make_runner
from pipeline.types import Lane, Prompt, SamplingParams, SchedulingParams, StepBlock
from tests.support.effort import examples
from tests.support.engines import Ahead, distinct
from tests.support.waiting import until

BULK, URGENT = SchedulingParams(Lane.BULK, first_steps=1), SchedulingParams(Lane.INTERACTIVE, first_steps=1)
BUFFER = 16  # steps
LIMIT_S = 100.0
MakeEngine = Callable[..., Engine]
Steps = AsyncGenerator[StepBlock, None]


@pytest.fixture(params=[make_runner, Ahead], ids=["alternating", "one round ahead"])
def make_engine(demo: Checkpoint, request: pytest.FixtureRequest) -> Iterator[MakeEngine]:
    factory: Callable[..., DeviceRunner] = request.param
    with ExitStack() as engines:

        def make(slots: int) -> Engine:
            settings = {"threads": 1, "max_prompt": 64, "max_steps": 128, "block_steps": 1, "buffer_steps": BUFFER}
            config = EngineConfig.varied(dict(slots=slots, **settings))
            return engines.enter_context(closing(Engine(config, demo, factory=factory)))

        yield make


def bounded(number: int, steps: int, scheduling: SchedulingParams, width: int) -> tuple[Prompt, SamplingParams]:
    prompt, sampling = distinct(number, width)
    return replace(prompt, max_steps=steps, scheduling=scheduling), replace(sampling, min_steps=steps)


async def codes_of(steps: Steps) -> np.ndarray:
    return np.concatenate([block.codes async for block in steps])


def alone(engine: Engine, request: tuple[Prompt, SamplingParams]) -> np.ndarray:
    return asyncio.run(codes_of(engine.generate(*request, timeout_s=LIMIT_S)))


async def is_paused(engine: Engine) -> None:
    await until(lambda: any(sequence.paused_since is not None for sequence in engine._scheduler._running()))


@pytest.mark.parametrize("leaves", [True, False])
def test_a_slow_reader_that_lost_its_slot_hears_its_own_steps(make_engine: MakeEngine, demo: Checkpoint, leaves: bool):
    width = demo.gpt_spec.width
    slow, urgent = bounded(1, 60, BULK, width), bounded(2, 100, URGENT, width)
    own, other = (alone(make_engine(1), request) for request in (slow, urgent))
    engine = make_engine(1)

    async def play() -> tuple[np.ndarray, np.ndarray]:
        async with aclosing(engine.generate(*slow, timeout_s=LIMIT_S)) as steps:
            blocks = [(await anext(steps)).codes]
            await is_paused(engine)
            async with aclosing(engine.generate(*urgent, timeout_s=LIMIT_S)) as urgently:
                beside = [(await anext(urgently)).codes for _ in range(10)]
                if not leaves:
                    beside.append(await codes_of(urgently))
            # It has a slot again, and decodes nothing, since nothing of it was read.
            await until(lambda: any(sequence.lane is Lane.BULK for sequence in engine._scheduler._running()))
            await asyncio.sleep(0.1)
            blocks.append(await codes_of(steps))
        return np.concatenate(blocks), np.concatenate(beside)

    codes, beside = asyncio.run(play())
    np.testing.assert_array_equal(codes, own)
    np.testing.assert_array_equal(beside, other[: len(beside)])
    engine.check_health()


def test_a_slot_that_is_taken_in_a_round_without_a_step_changes_hands_all_the_same(make_engine: MakeEngine, demo: Checkpoint):
    """One row keeps pace. Its reader pauses, a bulk sequence takes the room, and a newcomer takes it from that one."""
    width = demo.gpt_spec.width
    engine = make_engine(2)
    pace = engine._scheduler.pace
    for _ in range(50):
        pace.add(1, 0.015, 0.0)
    pace.add = lambda *measured: None  # type: ignore[method-assign]
    requests = [bounded(1, 120, URGENT, width), bounded(2, 120, BULK, width), bounded(3, 20, URGENT, width)]
    own = [alone(make_engine(1), request) for request in requests]

    async def play() -> list[np.ndarray]:
        first, bulk, newcomer = (engine.open(*request, timeout_s=LIMIT_S) for request in requests)
        engine.submit([(first, True)])
        await is_paused(engine)
        engine.submit([(bulk, True)])
        reading = asyncio.create_task(codes_of(engine.read(bulk)))
        await until(lambda: bulk.steps >= 3)
        launch = engine._runner.launch
        waiting = [newcomer]

        def launch_and_submit(plan: object) -> None:
            if waiting and first in plan.decode:  # type: ignore[attr-defined]
                engine.submit([(waiting.pop(), True)])
            launch(plan)  # type: ignore[arg-type]

        engine._runner.launch = launch_and_submit  # type: ignore[method-assign]
        steps = engine.read(first)
        begin = (await anext(steps)).codes  # room for one round, in which the newcomer arrives
        hearing = asyncio.create_task(codes_of(engine.read(newcomer)))
        await asyncio.sleep(0.2)
        rest, *others = await asyncio.gather(codes_of(steps), reading, hearing)
        return [np.concatenate([begin, rest]), *others]

    for codes, expected in zip(asyncio.run(play()), own, strict=True):
        np.testing.assert_array_equal(codes, expected)
    engine.check_health()


@pytest.mark.parametrize("seed", range(examples(3)))
def test_whatever_readers_do_each_hears_its_own_steps(make_engine: MakeEngine, demo: Checkpoint, seed: int):
    width, chance = demo.gpt_spec.width, random.Random(seed)
    lanes = [chance.choice([BULK, BULK, URGENT]) for _ in range(8)]
    requests = [bounded(number, chance.randint(20, 60), lane, width) for number, lane in enumerate(lanes)]
    calm = make_engine(1)
    own = [alone(calm, request) for request in requests]
    engine = make_engine(2)

    async def read(number: int) -> None:
        habits = random.Random(f"{seed} {number}")
        await asyncio.sleep(habits.uniform(0, 0.2))
        most = habits.choice([10, 1000, 1000])  # steps, then the reader leaves
        blocks: list[np.ndarray] = []
        async with aclosing(engine.generate(*requests[number], timeout_s=LIMIT_S, admitted=True)) as steps:
            async for block in steps:
                blocks.append(block.codes)
                if len(blocks) >= most:
                    break
                if habits.random() < 0.1:
                    await asyncio.sleep(habits.uniform(0, 0.2))
        codes = np.concatenate(blocks)
        np.testing.assert_array_equal(codes, own[number][: len(codes)])
        assert len(codes) == min(most, len(own[number]))

    async def play() -> None:
        async with asyncio.TaskGroup() as readers:
            for number in range(len(requests)):
                readers.create_task(read(number))

    asyncio.run(play())
    engine.check_health()
    engine._scheduler.check()
