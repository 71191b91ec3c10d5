"""Lanes: the order of service, preemption and promises; and that no bit of a preempted sequence differs."""

import asyncio
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.cpu_runner import CpuRunner
from pipeline.engine.device import DeviceRunner
from pipeline.engine.engine import Engine, make_runner
from pipeline.engine.gpu_runner import GpuRunner
from pipeline.engine.observer import NullEngineObserver
from pipeline.engine.pace import Pace
from pipeline.engine.promises import ThroughputEstimate
from pipeline.engine.round_times import EWMA_WEIGHT, MOST_TIMES
from pipeline.engine.scheduler import Plan, Scheduler
from pipeline.engine.sequence import Sequence
from pipeline.errors import AtCapacity, DeadlineUnmeetable
from pipeline.ewma import ClippedEwma
from pipeline.types import FinishReason, Head, Lane, Prompt, SamplingParams, SchedulingParams, SeedMode
from scripts.evaluate.gpu_check.sequences import SharedCheckpoint
from tests.support.effort import examples
from tests.support.engines import NUMERICS, Ahead, distinct
from tests.support.factories import WIDTH, Take, collect, make_prompt, make_sequence

BULK = SchedulingParams(Lane.BULK, first_steps=1)
URGENT = SchedulingParams(Lane.INTERACTIVE, first_steps=1)
Request = tuple[Prompt, SamplingParams]
Factory = Callable[..., DeviceRunner]


class Counting(NullEngineObserver):
    """Counts preemptions."""

    def __init__(self) -> None:
        self.preemptions = 0

    def preempted(self) -> None:
        self.preemptions += 1


def preempted(
    demo: Checkpoint,
    bulk: list[Request],
    urgent: list[Request],
    factory: Factory = make_runner,
    **overrides: object,
) -> tuple[list[Take], int]:
    """All takes, and how often a bulk one was preempted: an urgent one comes whenever a bulk one has delivered a block.

    Bulk ones wait for their readers after a few steps: on a busy machine they would else end before the urgent ones come."""
    observer = Counting()
    values = {"slots": 2, "threads": 1, "max_prompt": 64, "max_steps": 128, "block_steps": 1, "buffer_steps": 16} | overrides
    with closing(Engine(EngineConfig.varied(values), demo, observer=observer, factory=factory)) as engine:

        def run(request: Request, scheduling: SchedulingParams):
            prompt, sampling = request
            return engine.generate(replace(prompt, scheduling=scheduling), sampling, timeout_s=250, admitted=True)

        async def together() -> list[Take]:
            coming = iter(urgent)
            others: list[asyncio.Task[Take]] = []

            async def take(request: Request) -> Take:
                async def blocks():
                    async for block in run(request, BULK):
                        following = next(coming, None)
                        if following is not None:
                            others.append(asyncio.create_task(collect(run(following, URGENT))))
                            await asyncio.sleep(0)
                        yield block

                return await collect(blocks())

            takes = await asyncio.gather(*map(take, bulk))
            assert next(coming, None) is None, "all urgent ones came"
            return [*takes, *await asyncio.gather(*others)]

        return asyncio.run(together()), observer.preemptions


def alone(demo: Checkpoint, requests: list[Request], factory: Factory = make_runner, **overrides: object) -> list[Take]:
    values = {"slots": 2, "threads": 1, "max_prompt": 64, "max_steps": 128, "block_steps": 1, "buffer_steps": 128} | overrides
    with closing(Engine(EngineConfig.varied(values), demo, factory=factory)) as engine:

        async def takes() -> list[Take]:
            return [await collect(engine.generate(*request, timeout_s=250, admitted=True)) for request in requests]

        return asyncio.run(takes())


# Every way a CPU decodes, and a runner that is one round ahead.
WAYS = [
    (numerics, make_runner) if isinstance(numerics, dict) else pytest.param(*numerics.values, make_runner, marks=numerics.marks)
    for numerics in NUMERICS
]


def long(number: int, width: int) -> Request:
    prompt, sampling = distinct(number, width)
    return replace(prompt, max_steps=90), replace(sampling, min_steps=90)


@pytest.mark.slow
@pytest.mark.parametrize(("numerics", "factory"), [*WAYS, (NUMERICS[0], Ahead)])
def test_a_preempted_sequence_is_bit_equal_to_an_undisturbed_one(demo, numerics, factory):
    width = demo.gpt_spec.width
    text = make_prompt(14, number=3, head=Head.TEXT, eos_token=7, max_steps=80), SamplingParams(seed=3, min_steps=80)
    bulk = [long(number, width) for number in range(3)] + [text]
    urgent = [distinct(20 + number, width) for number in range(8)]
    takes, preemptions = preempted(demo, bulk, urgent, factory, **numerics)
    assert preemptions >= 2, "bulk sequences were preempted"
    expected = alone(demo, [*bulk, *urgent], **numerics)
    assert all(take.equals(other) for take, other in zip(takes, expected, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kv", ["dtype", pytest.param("int8", marks=pytest.mark.nightly)])
def test_a_preempted_sequence_is_bit_equal_on_the_gpus_runner(demo, kv):
    bulk = [(make_prompt(9, number=1, max_steps=8), SamplingParams(seed=1, min_steps=8, seed_mode=SeedMode.UPSTREAM))]
    urgent = [(make_prompt(12, number=2, max_steps=2), SamplingParams(seed=2, min_steps=2))]
    size = {"slots": 1, "max_steps": 64, "steps_per_round": 2, "buffer_steps": 16, "decode": "torch", "kv": kv}
    takes, preemptions = preempted(demo, bulk, urgent, GpuRunner, **size)
    assert preemptions == 1
    expected = alone(demo, [*bulk, *urgent], GpuRunner, **size)
    assert all(take.equals(other) for take, other in zip(takes, expected, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("numerics", "factory"),
    [
        *WAYS,
        (NUMERICS[0], Ahead),
        # Triton's interpreter takes 48 s for it, where nothing else runs.
        pytest.param({"decode": "torch"}, GpuRunner, marks=[pytest.mark.nightly, pytest.mark.timeout(900)]),
    ],
)
def test_a_row_that_is_left_out_of_rounds_is_bit_equal(demo, monkeypatch, numerics, factory):
    """One row keeps pace: while somebody listens, no bulk row decodes, and none is copied."""
    monkeypatch.setattr(Pace, "fast_rows", 1)
    steps = 40
    if factory is GpuRunner:  # the interpreter takes long: fewer steps, and one layer of the model
        steps, demo = 8, SharedCheckpoint.of(demo, 1)
    bulk = [(make_prompt(9 + n, number=n, max_steps=steps), SamplingParams(seed=n, min_steps=steps)) for n in range(2)]
    urgent = [(make_prompt(12, number=9, max_steps=steps // 2), SamplingParams(seed=2, min_steps=steps // 2))]
    size = numerics | {"slots": 3, "max_steps": 64, "buffer_steps": 128}
    waiting = []
    plan_of = Scheduler.next_plan

    def next_plan(scheduler: Scheduler, now: float) -> Plan:
        plan = plan_of(scheduler, now)
        waiting.append(len(scheduler._running()) - len(plan.decode))
        return plan

    monkeypatch.setattr(Scheduler, "next_plan", next_plan)
    takes, preemptions = preempted(demo, bulk, urgent, factory, **size)
    assert not preemptions
    assert max(waiting) >= 1, "bulk rows were held"
    expected = alone(demo, [*bulk, *urgent], factory, **size)
    assert all(take.equals(other) for take, other in zip(takes, expected, strict=True))


@pytest.mark.parametrize("kind", [CpuRunner, GpuRunner])
def test_nothing_of_a_slot_is_forgotten(demo, kind):
    """Every array with one row per slot is kept, or is computed again by every step."""
    slots = 13  # a size nothing else has
    runner = kind(EngineConfig(slots=slots, threads=1, max_prompt=64, max_steps=64), demo)
    made_anew = {"_x", "_slot_index", "_residual", "active", "tokens", "ends", "finite", "emitted", "ended", "broken"}
    places = {place_of(rows) for rows in runner._state.persistent()}
    for place in (runner, runner._state):
        names = [field.name for field in fields(place)] if is_dataclass(place) else vars(place)
        for name in names:
            value = getattr(place, name)
            if isinstance(value, torch.Tensor | np.ndarray) and len(value) in (slots, slots + 1) and name not in made_anew:
                assert place_of(value) in places, f"{name} is not kept when a sequence is preempted"


def place_of(rows: torch.Tensor | np.ndarray) -> int:
    return rows.data_ptr() if isinstance(rows, torch.Tensor) else rows.ctypes.data


# Without a model: a fake clock, steps of 20 ms.

STEP_S = 0.02


def claimed(lane: Lane, *, tenant: str = "", steps: int = 40, now: float = 0.0, promise_s: float | None = None) -> Sequence:
    sequence = make_sequence(max_steps=steps, now=now)
    first = min(steps, 10)
    sequence.prompt = replace(make_prompt(12, max_steps=steps), scheduling=SchedulingParams(lane, tenant, promise_s, first))
    sequence.sampling = SamplingParams(min_steps=steps)
    sequence.promised_at = None if promise_s is None else now + promise_s
    return sequence


class Simulation:
    """The real scheduler, and time that passes with rounds."""

    def __init__(self, **overrides: object) -> None:
        values = {"slots": 3, "max_prompt": 64, "max_steps": 256, "max_waiting": 64, "buffer_steps": 4096, "block_steps": 1}
        self.config = EngineConfig.varied(values | overrides)
        self.scheduler = Scheduler(self.config)
        self.now = 0.0
        self.served: list[Sequence] = []
        self.done: list[Sequence] = []
        self.heard_at: dict[int, float] = {}
        self.rounds = 0

    def submit(self, sequence: Sequence, *, admitted: bool = False) -> bool:
        try:
            self.scheduler.submit(
                sequence, admitted=admitted, retry_after_s=1.0, throughput=ThroughputEstimate(self.now, STEP_S)
            )
        except AtCapacity:
            return False
        return True

    def round(self) -> None:
        plan = self.scheduler.next_plan(self.now)
        assert not plan.removed
        for sequence, _ in plan.preempt:
            assert sequence.lane is Lane.BULK
            assert sequence.preempted_state is not None
        for sequence in plan.restore:
            sequence.preempted_state = None
        self.served += plan.prefill
        self.now += STEP_S
        for sequence in plan.decode:
            sequence.emit(np.zeros(WIDTH, np.float32), np.zeros(4, np.int64))
            self.rounds += 1
            if sequence.steps == min(sequence.prompt.scheduling.first_steps, sequence.max_steps):
                self.heard_at[id(sequence)] = self.now
            if sequence.steps >= sequence.max_steps:
                self.scheduler.release(sequence)
                sequence.flush(FinishReason.LENGTH)
                self.scheduler.queue.learn(sequence)
                self.done.append(sequence)
        self.scheduler.check()

    @property
    def is_idle(self) -> bool:
        return not self.scheduler.num_running and not self.scheduler.num_waiting


def inside_a_loop(work: Callable[[], None]) -> None:
    async def body() -> None:
        work()

    asyncio.run(body())


arrivals = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(list(Lane)), st.integers(2, 120), st.sampled_from("abc"), st.floats(0.3, 8)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(60))
@given(arrivals, st.integers(1, 4), st.integers(0, 3))
def test_admitted_requests_keep_their_promise(coming, slots, max_preempted):
    """Lengths known, time without noise: then the promise holds exactly, give or take the round that was under way."""

    def work() -> None:
        sim = Simulation(slots=slots, max_preempted=max_preempted)
        admitted = []
        for rounds, lane, steps, tenant, promise_s in coming:
            for _ in range(rounds):
                sim.round()
            sequence = claimed(lane, tenant=tenant, steps=steps, now=sim.now, promise_s=promise_s)
            before = sim.rounds
            if sim.submit(sequence):
                admitted.append(sequence)
            assert sim.rounds == before, "asking costs no step"
        while not sim.is_idle:
            sim.round()
        assert sorted(map(id, sim.done)) == sorted(map(id, admitted)), "nobody admitted is lost, nobody is served twice"
        for sequence in admitted:
            slack = (2 + len(admitted)) * STEP_S  # one prefill a round
            assert sim.heard_at[id(sequence)] <= sequence.promised_at + slack

    inside_a_loop(work)


def test_a_bulk_sequence_that_ends_before_it_is_needed_is_no_slot_to_take():
    """The only slot: bulk ends, a standard sequence that has waited long enough follows, an interactive one comes behind it."""

    def work() -> None:
        sim = Simulation(slots=1, standard_patience_s=0.5)
        sim.submit(claimed(Lane.BULK, steps=200))
        for _ in range(20):
            sim.round()
        sim.submit(claimed(Lane.STANDARD, steps=20, now=sim.now), admitted=True)
        for _ in range(40):
            sim.round()
        assert sim.submit(claimed(Lane.INTERACTIVE, steps=20, now=sim.now, promise_s=30.0))
        while not sim.is_idle:
            sim.round()
        assert len(sim.done) == 3

    inside_a_loop(work)


@settings(max_examples=examples(200))
@given(arrivals, st.integers(1, 3), st.integers(0, 3), st.floats(0.02, 1.0))
def test_an_estimate_never_fails_whatever_waits_and_runs(coming, slots, max_preempted, patience_s):
    """A newcomer is admitted or refused, never an error, with every lane impatient."""

    def work() -> None:
        sim = Simulation(
            slots=slots, max_preempted=max_preempted, standard_patience_s=patience_s, bulk_patience_s=2 * patience_s
        )
        for rounds, lane, steps, tenant, promise_s in coming:
            for _ in range(rounds):
                sim.round()
            sequence = claimed(lane, tenant=tenant, steps=steps, now=sim.now, promise_s=promise_s)
            sim.submit(sequence)

    inside_a_loop(work)


def test_a_promise_nobody_can_keep_is_refused_with_the_time_to_come_back():
    def work() -> None:
        sim = Simulation(slots=1)
        assert sim.submit(claimed(Lane.STANDARD, steps=200, promise_s=1.0))
        sim.round()
        with pytest.raises(DeadlineUnmeetable) as refusal:
            sim.scheduler.submit(
                claimed(Lane.STANDARD, steps=100, now=sim.now, promise_s=1.0),
                admitted=False, retry_after_s=9.0, throughput=ThroughputEstimate(sim.now, STEP_S),
            )  # fmt: skip
        assert 2.5 < refusal.value.retry_after_s < 4, "199 steps of 20 ms and its own first ten, less the second it may take"
        assert sim.submit(claimed(Lane.STANDARD, steps=100, now=sim.now, promise_s=9.0))
        assert sim.submit(claimed(Lane.STANDARD, steps=100, now=sim.now, promise_s=1.0), admitted=True), "it has its ticket"

    inside_a_loop(work)


def test_an_idle_engine_takes_whoever_comes_however_slow_it_last_was():
    def work() -> None:
        scheduler = Simulation(slots=1).scheduler
        newcomer = claimed(Lane.STANDARD, steps=100, promise_s=1.0)
        scheduler.submit(newcomer, admitted=False, retry_after_s=1.0, throughput=ThroughputEstimate(0.0, step_s=60.0))
        assert scheduler.num_waiting == 1

    inside_a_loop(work)


def test_a_single_long_pause_does_not_raise_the_step_time():
    step_s = ClippedEwma(EWMA_WEIGHT, 0.0, most_times=MOST_TIMES)
    step_s.add(STEP_S)
    step_s.add(3600.0)
    assert step_s.value < 1.5 * STEP_S
    for _ in range(100):
        step_s.add(10 * STEP_S)
    assert step_s.value > 9 * STEP_S, "one that stays slow is"


def test_admission_makes_no_waiting_request_late():
    def work() -> None:
        sim = Simulation(slots=1)
        sim.submit(claimed(Lane.STANDARD, steps=100))
        sim.round()
        assert sim.submit(claimed(Lane.STANDARD, steps=50, now=sim.now, promise_s=2.5)), "due just in time"
        urgent = claimed(Lane.INTERACTIVE, steps=100, now=sim.now, promise_s=8.0)
        with pytest.raises(DeadlineUnmeetable, match="a request already admitted"):
            sim.scheduler.submit(urgent, admitted=False, retry_after_s=1.0, throughput=ThroughputEstimate(sim.now, STEP_S))

    inside_a_loop(work)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=examples(20))
def test_bulk_older_than_its_patience_keeps_one_row(seed, is_in_slots):
    """However many listeners come, and however full the slots are of bulk: both go on."""

    def work() -> None:
        chance = random.Random(seed)
        sim = Simulation(slots=3, bulk_patience_s=2.0, standard_patience_s=0.5, max_waiting=4096)
        bulk = [claimed(Lane.BULK, steps=chance.randint(10, 60)) for _ in range(8)]
        for sequence in bulk:
            sim.submit(sequence, admitted=True)
        for _ in range(4 * is_in_slots):
            sim.round()
        listened = []
        while not all(sequence in sim.done for sequence in bulk):
            if sim.scheduler.num_waiting < 100:
                lane = chance.choice([Lane.INTERACTIVE, Lane.STANDARD])
                sim.submit(claimed(lane, steps=chance.randint(10, 60), now=sim.now), admitted=True)
            sim.round()
            listened.append(sum(row.lane is not Lane.BULK for row in sim.scheduler._running()))
            # All listeners of the first seconds go first; then a third of the steps is bulk's.
            assert sim.now < 2.5 + (130 * 60 / 3 + 8 * 60) * STEP_S
        assert sum(listened[-50:]) >= 50, "and listeners are served meanwhile"

    inside_a_loop(work)


@given(st.integers(0, 2**32 - 1), st.sampled_from(list(Lane)))
@settings(max_examples=examples(30))
def test_tenants_of_a_lane_get_equal_shares_of_steps(seed, lane):
    def work() -> None:
        chance = random.Random(seed)
        sim = Simulation(slots=2, max_waiting=4096)
        for number in range(90):  # a sends three times as many, all before b
            tenant = "a" if number < 60 else "b"
            sim.submit(claimed(lane, tenant=tenant, steps=chance.randint(5, 60)), admitted=True)
        given_steps = {"a": 0, "b": 0}
        while all(any(entry.tenant == tenant for entry in sim.scheduler.queue) for tenant in "ab"):
            before = len(sim.served)
            sim.round()
            for sequence in sim.served[before:]:
                given_steps[sequence.tenant] += sequence.max_steps
            assert abs(given_steps["a"] - given_steps["b"]) <= 2 * 60, "never further apart than two of the longest"

    inside_a_loop(work)


@pytest.mark.parametrize("lane", list(Lane))
@pytest.mark.parametrize("then", ["one by one", "together, and before the one that is wanted", "together, and behind it"])
def test_a_tenant_pays_for_what_was_made(lane, then):
    """Whoever cancels what it asked for waits no longer than whoever asked for nothing."""

    def turns(cancelled: int) -> int:
        sim = Simulation(slots=1, max_rtf=None, max_waiting=4096)

        def submit(tenant: str) -> Sequence:
            sequence = claimed(lane, tenant=tenant, steps=100)
            assert sim.submit(sequence, admitted=True)
            return sequence

        for _ in range(40):
            submit("patient")
        sim.scheduler.next_plan(0.0)
        candidate = submit("other") if then.endswith("behind it") and not cancelled else None
        gone = []
        for _ in range(cancelled):
            gone.append(submit("other"))
            if then == "one by one":
                sim.scheduler.cancel(gone[-1])
                sim.scheduler.next_plan(0.0)
        if then.endswith("behind it"):
            candidate = candidate or submit("other")
        for sequence in gone:
            sim.scheduler.cancel(sequence)
        sim.scheduler.next_plan(0.0)
        candidate = candidate or submit("other")
        count = 0
        while candidate.slot is None:
            (running,) = sim.scheduler._running()
            running.steps = running.max_steps
            sim.scheduler.release(running)
            sim.scheduler.next_plan(0.0)
            count += 1
        return count

    inside_a_loop(lambda: None if turns(20) <= turns(0) + 1 else pytest.fail(f"{turns(20)} turns instead of {turns(0)}"))


def test_whoever_made_less_than_predicted_is_served_sooner():
    def work() -> None:
        sim = Simulation(slots=1, max_rtf=None, max_waiting=4096)
        for _ in range(10):
            for tenant in ("brief", "long"):
                sim.submit(claimed(Lane.STANDARD, tenant=tenant, steps=100), admitted=True)
        steps = {"brief": 0, "long": 0}
        for turn in range(200):
            sim.scheduler.next_plan(0.0)
            running = sim.scheduler._running()
            running[0].steps = 5 if running[0].tenant == "brief" else 100
            steps[running[0].tenant] += running[0].steps * (turn >= 20)  # those before were asked for at once
            sim.submit(claimed(Lane.STANDARD, tenant=running[0].tenant, steps=100), admitted=True)
            sim.scheduler.release(running[0])
        assert steps["brief"] > 0.7 * steps["long"], steps

    inside_a_loop(work)


def test_bulk_leaves_half_of_the_waiting_room_to_others():
    def work() -> None:
        sim = Simulation(slots=1, max_waiting=4)
        sim.submit(claimed(Lane.BULK))
        sim.round()
        assert [sim.submit(claimed(Lane.BULK)) for _ in range(3)] == [True, True, False]
        assert [sim.submit(claimed(Lane.INTERACTIVE)) for _ in range(3)] == [True, True, False]

    inside_a_loop(work)


def test_no_more_are_preempted_than_may_be_kept():
    def work() -> None:
        sim = Simulation(slots=3, max_preempted=2)
        for _ in range(3):
            sim.submit(claimed(Lane.BULK, steps=200))
        for _ in range(20):
            sim.round()
        for _ in range(3):
            sim.submit(claimed(Lane.INTERACTIVE, steps=20, now=sim.now))
        sim.round()
        assert [sequence.lane for sequence in sim.scheduler._running()].count(Lane.INTERACTIVE) == 1, "one prefill a round"
        for _ in range(300):
            sim.round()
        assert len(sim.done) == 6

    inside_a_loop(work)
