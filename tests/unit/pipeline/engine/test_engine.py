"""The engine's promises, on the demo checkpoint: each sequence as if alone, whatever the others do."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, aclosing, closing
from dataclasses import replace
from itertools import accumulate, chain, repeat

import numpy as np
import pytest

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.device import DeviceRunner
from pipeline.engine.engine import Engine, make_runner
from pipeline.errors import AtCapacity, ConfigError, DeadlineExceeded, EngineDead, NonFiniteOutput, ReaderStalled, TextTooLong
from pipeline.native import compiler, instructions
from pipeline.types import FinishReason, Head, Prompt, SamplingParams, SchedulingParams, SeedMode, StepBlock
from tests.support.clock import HeldClock
from tests.support.engines import NUMERICS, Ahead, distinct
from tests.support.factories import Take, collect, make_prompt, take
from tests.support.waiting import wait_until

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(demo: Checkpoint) -> Iterator[MakeEngine]:
    with ExitStack() as engines:

        def make(
            factory: Callable[..., DeviceRunner] = make_runner, clock: Callable[[], float] = time.monotonic, **overrides: object
        ) -> Engine:
            settings = {"slots": 4, "threads": 1, "max_prompt": 64, "max_steps": 128} | overrides
            return engines.enter_context(closing(Engine(EngineConfig.varied(settings), demo, clock, factory=factory)))

        yield make


def run_together(engine: Engine, requests: list[tuple[Prompt, SamplingParams]]) -> list[Take]:
    async def together() -> list[Take]:
        return await asyncio.gather(
            *(collect(engine.generate(prompt, sampling, timeout_s=100, admitted=True)) for prompt, sampling in requests)
        )

    return asyncio.run(together())


def pass_time(engine: Engine, clock: HeldClock, seconds: float) -> None:
    """The engine looks at the clock again, and has looked once a whole request has gone through it."""
    clock.advance(seconds)
    assert len(take(engine, make_prompt(max_steps=5), SamplingParams(min_steps=5)).codes) == 5


@pytest.mark.slow
@pytest.mark.parametrize("numerics", NUMERICS, ids=lambda numerics: "-".join(numerics.values()))
def test_alone_equals_crowded_equals_reused_slot_equals_another_engine(make_engine, demo, numerics):
    engine, other = make_engine(**numerics), make_engine(**numerics)
    requests = [distinct(number, demo.gpt_spec.width) for number in range(12)]
    alone = [take(engine, *request) for request in requests]
    assert all(len(take.codes) > 0 for take in alone)
    assert len({take.codes.tobytes() for take in alone}) == len(alone), "the requests differ, or equality proves nothing"
    for order in (requests, requests[::-1], random.Random(1).sample(requests, len(requests))):
        crowded = dict(zip(map(id, order), run_together(engine, order), strict=True))
        assert all(take.equals(crowded[id(request)]) for take, request in zip(alone, requests, strict=True))
    assert all(take.equals(there) for take, there in zip(alone, run_together(other, requests), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"steps_per_round": 5}, {"block_steps": 1}, {"block_steps": 16, "buffer_steps": 20}])
def test_rounds_blocks_and_buffers_change_no_bit(make_engine, demo, change):
    requests = [distinct(number, demo.gpt_spec.width) for number in range(6)]
    plain, changed = run_together(make_engine(), requests), run_together(make_engine(**change), requests)
    assert all(take.equals(another) for take, another in zip(plain, changed, strict=True))


@pytest.mark.parametrize("steps_per_round", [1, 3])
@pytest.mark.parametrize(
    "blocks", [(7, 3, 5), *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((), (1,), (30, 8), (1000,)))]
)
def test_blocks_come_in_the_sizes_that_are_of_use_and_change_no_bit(make_engine, demo, blocks, steps_per_round):
    """A size beyond the buffer is cut to what the buffer holds: nobody waits for ever."""
    engine = make_engine(steps_per_round=steps_per_round, buffer_steps=16, ignore_eos=True)
    prompt, sampling = make_prompt(9, max_steps=60), SamplingParams(seed=3)
    changed = replace(prompt, scheduling=SchedulingParams(blocks=blocks))

    async def read() -> list[StepBlock]:
        return [block async for block in engine.generate(changed, sampling, timeout_s=100)]

    blocks_read = asyncio.run(read())
    due = accumulate(chain(wished := [min(size, 16 - steps_per_round) for size in blocks or (4,)], repeat(wished[-1])))
    ends, stop = [], next(due)
    for end in range(steps_per_round, 60, steps_per_round):  # the end of each round but the last
        if end >= stop:
            ends.append(end)
            stop = next(edge for edge in due if edge > end)
    assert [block.first_step + len(block.codes) for block in blocks_read] == [*ends, 60]
    plain = take(engine, prompt, sampling)
    assert np.array_equal(np.concatenate([block.hidden for block in blocks_read]), plain.hidden)
    assert np.array_equal(np.concatenate([block.codes for block in blocks_read]), plain.codes)


@pytest.mark.slow
def test_prompts_prefilled_together_equal_prompts_prefilled_alone(make_engine, demo):
    engine = make_engine(prefill_rows=3)
    requests = [(make_prompt(9 + number % 8, number=number, max_steps=20), SamplingParams(seed=number)) for number in range(9)]
    alone = [take(engine, *request) for request in requests]
    assert all(take.equals(there) for take, there in zip(alone, run_together(engine, requests), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("factory", [make_runner, Ahead])
def test_whoever_is_cancelled_the_others_never_notice(make_engine, demo, factory):
    engine = make_engine(factory, steps_per_round=1 if factory is make_runner else 3)
    requests = [distinct(number, demo.gpt_spec.width) for number in range(40)]
    plain = make_engine()
    alone = [take(plain, *request) for request in requests]

    async def listener(index: int, chance: random.Random) -> Take | None:
        await asyncio.sleep(chance.random() * 0.5)
        leave_after = chance.randint(0, 20) if chance.random() < 0.5 else None
        prompt, sampling = requests[index]
        steps = 0
        async with aclosing(engine.generate(prompt, sampling, timeout_s=100, admitted=True)) as blocks:
            if leave_after is None:
                return await collect(blocks)
            async for block in blocks:
                steps += len(block.codes)
                if steps >= leave_after:
                    return None
        return None

    async def storm() -> list[Take | None]:
        chance = random.Random(5)
        return await asyncio.gather(*(listener(index, random.Random(chance.random())) for index in range(len(requests))))

    results = asyncio.run(storm())
    assert sum(result is not None for result in results) > 10
    assert sum(result is None for result in results) > 5
    assert all(result is None or result.equals(take) for result, take in zip(results, alone, strict=True))
    wait_until(lambda: engine.stats().slots_used == 0 and engine.stats().waiting == 0, 20.0)
    engine._scheduler.check()


@pytest.mark.slow
def test_refine_pass_and_codes_share_the_slots_unnoticed(make_engine, demo):
    engine = make_engine()
    codes = [distinct(number, demo.gpt_spec.width) for number in range(3)]
    texts = [
        (
            make_prompt(10, number=number, head=Head.TEXT, eos_token=7, max_steps=30),
            SamplingParams(temperature=0.7, repetition_penalty=1.0, seed=number, seed_mode=mode),
        )
        for number, mode in enumerate(SeedMode)
    ]
    requests = [codes[0], texts[0], codes[1], texts[1], codes[2]]
    alone = [take(engine, *request) for request in requests]
    assert alone[1].codes.shape[1] == 1, "one text token a step"
    assert alone[1].codes.max() > 626 or demo.gpt_spec.text_vocab <= 626, "drawn from the text vocabulary"
    assert all(take.equals(there) for take, there in zip(alone, run_together(engine, requests), strict=True))


@pytest.mark.parametrize(
    "numerics",
    [{}, *(pytest.param(options, marks=pytest.mark.slow) for options in ({"kv": "int8"}, {"decode": "torch", "kv": "int8"}))],
)
def test_non_finite_row_ends_alone_and_leaves_its_slot_clean(make_engine, demo, numerics):
    engine = make_engine(**numerics)
    requests = [distinct(number, demo.gpt_spec.width) for number in range(4)]
    alone = [take(engine, *request) for request in requests]
    poison = make_prompt(10, speaker=np.full(demo.gpt_spec.width, np.nan, np.float16))

    async def mixed() -> list[Take | BaseException]:
        poisoned = [collect(engine.generate(poison, SamplingParams(), timeout_s=100, admitted=True)) for _ in range(4)]
        good = [collect(engine.generate(*request, timeout_s=100, admitted=True)) for request in requests]
        order = [task for pair in zip(poisoned, good, strict=True) for task in pair]
        return await asyncio.gather(*order, return_exceptions=True)

    results = asyncio.run(mixed())
    assert all(isinstance(result, NonFiniteOutput) for result in results[0::2])
    assert all(take.equals(result) for take, result in zip(alone, results[1::2], strict=True))
    # Every slot has been poisoned by now; whoever comes next must not meet any of it.
    assert all(take.equals(there) for take, there in zip(alone, run_together(engine, requests), strict=True))
    engine.check_health()


def test_min_steps_makes_an_empty_segment_impossible(make_engine, demo):
    engine = make_engine()
    for seed in range(30):
        sampling = SamplingParams(temperature=2.0, top_p=1.0, top_k=626, seed=seed, min_steps=1)
        assert len(take(engine, make_prompt(number=seed, max_steps=2), sampling).codes) >= 1


def test_step_cap_ends_a_segment(make_engine):
    result = take(make_engine(), make_prompt(max_steps=7), SamplingParams(min_steps=50))
    assert (len(result.codes), result.finish) == (7, FinishReason.LENGTH)


@pytest.mark.slow
def test_an_engine_that_ignores_the_end_runs_every_segment_to_its_cap(make_engine):
    sampling = SamplingParams(temperature=2.0, top_p=1.0, top_k=626)
    requests = [(make_prompt(max_steps=128), replace(sampling, seed=seed)) for seed in range(20)]
    lengths = {
        ignores: [len(take.codes) for take in run_together(make_engine(ignore_eos=ignores, slots=10), requests)]
        for ignores in (True, False)
    }
    assert set(lengths[True]) == {128}
    assert min(lengths[False]) < 128, "some of these seeds draw an end, or this test could not fail"


def test_full_waiting_room_refuses_at_once_and_says_when(make_engine):
    engine = make_engine(slots=1, max_waiting=2)

    def ask(steps: int, *, admitted: bool = False) -> Coroutine[None, None, Take]:
        sampling = SamplingParams(min_steps=steps)
        return collect(engine.generate(make_prompt(max_steps=steps), sampling, timeout_s=60, admitted=admitted))

    async def crowd() -> list[Take | BaseException]:
        slow = [asyncio.create_task(ask(128)) for _ in range(3)]
        await asyncio.sleep(0)  # every task has run to its first wait: one sequence for the slot, two in the waiting room
        with pytest.raises(AtCapacity, match="max_waiting") as refusal:
            await ask(8)
        assert refusal.value.retry_after_s > 0
        assert not any(task.done() for task in slow), "it did not wait for one of them to end"
        return await asyncio.gather(*slow, ask(8, admitted=True), return_exceptions=True)

    assert all(isinstance(result, Take) for result in asyncio.run(crowd())), "nobody who was let in is turned away later"


def test_reader_that_leaves_frees_its_slot_within_a_round(make_engine):
    engine = make_engine(slots=1)

    async def leave() -> int:
        async with aclosing(engine.generate(make_prompt(max_steps=128), SamplingParams(min_steps=128), timeout_s=60)) as blocks:
            await anext(blocks)
        return engine.stats().rounds

    rounds = asyncio.run(leave())
    wait_until(lambda: engine.stats().slots_used == 0, 20.0)
    assert engine.stats().rounds <= rounds + 1


def test_reader_whose_loop_is_gone_harms_nobody(make_engine):
    engine = make_engine(slots=1)

    async def vanish() -> None:
        sequence = engine.open(make_prompt(max_steps=60), SamplingParams(min_steps=60), timeout_s=60)
        engine.submit([(sequence, True)])

    asyncio.run(vanish())  # the loop is closed while the engine still has steps for it
    assert len(take(engine, make_prompt(), SamplingParams(min_steps=5)).codes) >= 5
    engine.check_health()


@pytest.mark.slow
def test_slow_reader_pauses_itself_alone_and_loses_nothing(make_engine):
    engine = make_engine(buffer_steps=16, stall_timeout_s=30)
    request = (make_prompt(max_steps=100), SamplingParams(min_steps=100, seed=3))
    alone = take(engine, *request)

    async def slow_and_fast() -> Take:
        slow = engine.generate(*request, timeout_s=60)
        first = await anext(slow)
        fast = [await collect(engine.generate(make_prompt(max_steps=100), SamplingParams(min_steps=100), timeout_s=60))]
        assert len(fast[0].codes) == 100, "the neighbour finished meanwhile"
        pending = sum(sequence.pending_steps for sequence in engine._scheduler._running())
        assert pending <= 16, "no more than the buffer was made ahead"

        async def rest():
            yield first
            async for block in slow:
                yield block

        return await collect(rest())

    assert asyncio.run(slow_and_fast()).equals(alone)


def test_reader_that_stops_is_cut_after_the_stated_time(make_engine):
    clock = HeldClock()
    engine = make_engine(buffer_steps=16, stall_timeout_s=30, slots=2, clock=clock)

    async def stop() -> None:
        blocks = engine.generate(make_prompt(max_steps=128), SamplingParams(min_steps=128), timeout_s=600)
        await anext(blocks)
        (slow,) = engine._scheduler._running()
        wait_until(lambda: slow.paused_since is not None and slow.pending_steps == 16, 20.0)  # full again behind that read
        await asyncio.to_thread(pass_time, engine, clock, 29.9)
        assert engine.stats().slots_used == 1, "it may still read on"
        clock.advance(0.2)
        engine.submit([])
        wait_until(lambda: engine.stats().slots_used == 0, 20.0)
        with pytest.raises(ReaderStalled, match="nothing was read for 30 s"):
            async for _ in blocks:
                pass

    asyncio.run(stop())


def test_deadline_ends_who_runs_and_who_waits(make_engine):
    clock = HeldClock()
    engine = make_engine(slots=1, buffer_steps=16, clock=clock)  # so the first waits for its reader, and the second for it

    async def late() -> None:
        running, waiting = (
            engine.generate(make_prompt(max_steps=128), SamplingParams(min_steps=128), timeout_s=5) for _ in range(2)
        )
        await anext(running)
        second = asyncio.create_task(anext(waiting))
        await asyncio.sleep(0)
        assert (engine.stats().slots_used, engine.stats().waiting) == (1, 1)
        clock.advance(5)
        engine.submit([])
        with pytest.raises(DeadlineExceeded):
            async for _ in running:
                pass
        with pytest.raises(DeadlineExceeded):
            await second

    asyncio.run(late())
    assert (engine.stats().slots_used, engine.stats().waiting) == (0, 0)


def test_loop_that_dies_tells_its_readers_and_the_health_check(make_engine, monkeypatch):
    engine = make_engine(buffer_steps=16)  # so the sequence waits for its reader, and has steps to make when they break
    engine.check_health()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the step has a bug")

    async def running() -> None:
        async with aclosing(engine.generate(make_prompt(max_steps=128), SamplingParams(min_steps=128), timeout_s=60)) as blocks:
            await anext(blocks)
            monkeypatch.setattr(engine._runner._model, "step", broken)
            with pytest.raises(EngineDead):
                async for _ in blocks:
                    pass

    asyncio.run(running())
    with pytest.raises(EngineDead, match="the step has a bug"):
        engine.check_health()
    with pytest.raises(EngineDead):
        take(engine, make_prompt(), SamplingParams())


def test_round_that_hangs_fails_the_health_check_with_its_age(make_engine, monkeypatch):
    clock = HeldClock()
    engine = make_engine(round_timeout_s=10, clock=clock)
    step, hanging, go_on = engine._runner._model.step, threading.Event(), threading.Event()

    def hang(*args: object, **kwargs: object) -> None:
        hanging.set()
        assert go_on.wait(60)
        step(*args, **kwargs)

    monkeypatch.setattr(engine._runner._model, "step", hang)

    async def ask() -> None:
        task = asyncio.create_task(collect(engine.generate(make_prompt(max_steps=2), SamplingParams(), timeout_s=60)))
        try:
            assert await asyncio.to_thread(hanging.wait, 60)
            clock.advance(10)
            engine.check_health()
            clock.advance(2.5)
            with pytest.raises(EngineDead, match=r"a round has been running for 12\.5 s; the limit is 10 s"):
                engine.check_health()
        finally:
            go_on.set()
        await task

    asyncio.run(ask())
    engine.check_health()


@pytest.mark.parametrize(
    "settings", [{"decode": "native"}, *({"dtype": "bfloat16", "weights": weights} for weights in ("int8", "int4"))]
)
def test_machine_that_cannot_decode_natively_says_so_when_told_to(make_engine, monkeypatch, settings):
    monkeypatch.setattr(instructions.platform, "machine", lambda: "riscv64")
    compiler.library.cache_clear()
    with pytest.raises(
        ConfigError,
        match=r"engine.decode .* impossible: it needs Linux on x86-64 .*; set decode",
    ):
        make_engine(**settings)
    compiler.library.cache_clear()


def test_machine_that_cannot_decode_natively_uses_torch_and_logs_it(make_engine, monkeypatch, caplog):
    request = (make_prompt(max_steps=20), SamplingParams(seed=3))
    expected = take(make_engine(decode="torch"), *request)
    monkeypatch.setattr(instructions.platform, "machine", lambda: "riscv64")
    compiler.library.cache_clear()
    assert take(make_engine(), *request).equals(expected)
    assert "decoding with torch's operations" in caplog.text
    compiler.library.cache_clear()


def test_kv_cache_that_does_not_fit_its_budget_is_refused(demo):
    with pytest.raises(ConfigError, match=r"engine.slots 64 .* engine.kv_budget_mib allows 1, which holds \d+ slots"):
        Engine(EngineConfig(slots=64, kv_budget_mib=1), demo)


def test_a_cache_of_8_bits_takes_what_its_numbers_and_scales_take(make_engine, demo):
    settings = {"decode": "torch", "dtype": "bfloat16", "kv_budget_mib": 1}
    spec = demo.gpt_spec
    rows = 2 * spec.layers * spec.heads * (64 + 128)  # of one slot
    fits = (1 << 20) // (rows * (spec.head_dim + 4))
    assert (1 << 20) // (rows * 2 * spec.head_dim) < fits, "more than bfloat16 has room for"
    engine = make_engine(**settings, kv="int8", slots=fits)
    assert engine.stats().kv_bytes == fits * rows * (spec.head_dim + 4)
    with pytest.raises(ConfigError, match=f"which holds {fits} slots"):
        make_engine(**settings, kv="int8", slots=fits + 1)
    with pytest.raises(ConfigError, match="raise the budget"):
        make_engine(**settings, slots=fits)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kv": "int8", "decode": "torch", "dtype": "bfloat16", "weights": "int8"}, "weights int8 need decode native or auto"),
        ({"kv": "int4"}, "Input should be 'dtype' or 'int8'"),
        ({"weights": "int8"}, "weights int8 need dtype bfloat16, not float32"),
        ({"weights": "int4"}, "weights int4 need dtype bfloat16, not float32"),
        ({"decode": "torch", "dtype": "bfloat16", "weights": "int4"}, "weights int4 need decode native or auto"),
        ({"device": "cuda", "dtype": "bfloat16", "weights": "int4"}, "weights int4 are for a CPU, with decode native or auto"),
        ({"weights": "int8", "device": "cuda"}, "weights int8 need dtype bfloat16, not float32"),
    ],
)
def test_what_no_device_can_read_is_refused(settings, reason):
    with pytest.raises(ValueError, match=reason):
        EngineConfig.model_validate(settings)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("weights", ["dtype", "int8"])
@pytest.mark.parametrize("kv", ["dtype", "int8"])
def test_a_device_takes_8_bits_of_either_and_of_both(device, weights, kv):
    config = EngineConfig(device=device, dtype="bfloat16", weights=weights, kv=kv)
    assert (config.weights, config.kv) == (weights, kv)


def test_more_positions_than_the_model_knows_are_refused(demo):
    with pytest.raises(ConfigError, match="4096"):
        Engine(EngineConfig(slots=1, max_prompt=3072, max_steps=2048, kv_budget_mib=100_000), demo)


def test_prompt_longer_than_a_slot_is_the_clients_error(make_engine):
    with pytest.raises(TextTooLong, match=r"65 positions; the limit is 64"):
        take(make_engine(), make_prompt(65), SamplingParams())
