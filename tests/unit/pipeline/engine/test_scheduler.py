"""The scheduler's promises, over any history of submits, cancels, steps, reads and waiting. No torch."""

import asyncio

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.config import EngineConfig
from pipeline.engine.scheduler import Scheduler, prefill_bucket
from pipeline.engine.sequence import Sequence
from pipeline.errors import AtCapacity, DeadlineExceeded, ReaderStalled
from pipeline.types import FinishReason
from tests.support.effort import examples
from tests.support.factories import WIDTH, make_sequence


def make_scheduler(**overrides: object) -> Scheduler:
    settings = {"slots": 2, "max_prompt": 64, "max_steps": 64, "buffer_steps": 12, "block_steps": 4} | overrides
    return Scheduler(EngineConfig.varied(settings))


def submit(scheduler: Scheduler, sequence: Sequence, *, admitted: bool = False) -> Sequence:
    scheduler.submit(sequence, admitted=admitted, retry_after_s=1.0)
    return sequence


def step(sequence: Sequence) -> None:
    sequence.emit(np.zeros(WIDTH, np.float32), np.zeros(4, np.int64))
    sequence.flush()


def in_loop(function):
    """Run a test inside an event loop: a StepStream belongs to one."""

    async def body() -> None:
        function()

    def run() -> None:
        asyncio.run(body())

    run.__name__ = function.__name__
    return run


@in_loop
def test_first_come_first_served_lowest_slot_first():
    scheduler = make_scheduler()
    first, second, third = (submit(scheduler, make_sequence()) for _ in range(3))
    plans = [scheduler.next_plan(0.0) for _ in range(3)]
    assert [plan.prefill for plan in plans] == [(first,), (second,), ()]
    assert [sequence.slot for sequence in (first, second, third)] == [0, 1, None]
    scheduler.release(first)
    assert scheduler.next_plan(0.0).prefill == (third,)
    assert third.slot == 0


@in_loop
def test_prompts_of_one_bucket_are_prefilled_together_and_nobody_loses_the_place():
    scheduler = make_scheduler(slots=4, prefill_rows=3)
    short, long, short_too, long_too = (submit(scheduler, make_sequence(length=length)) for length in (10, 40, 16, 33))
    assert prefill_bucket(10) == prefill_bucket(16) == 16
    assert scheduler.next_plan(0.0).prefill == (short, short_too)
    assert scheduler.next_plan(0.0).prefill == (long, long_too)


@in_loop
def test_extent_covers_who_decodes_and_no_more():
    scheduler = make_scheduler(slots=4)
    sequence = submit(scheduler, make_sequence(length=62))
    plan = scheduler.next_plan(0.0)
    assert (plan.extent_slots, plan.extent_positions) == (1, 64)
    step(sequence)
    step(sequence)
    assert scheduler.next_plan(0.0).extent_positions == 128


@in_loop
def test_full_waiting_room_refuses_but_not_who_is_admitted():
    scheduler = make_scheduler(slots=1, max_waiting=1)
    submit(scheduler, make_sequence())
    scheduler.next_plan(0.0)
    submit(scheduler, make_sequence())
    with pytest.raises(AtCapacity, match="all 1 slots are taken and 1 segments wait; the limit is 1"):
        submit(scheduler, make_sequence())
    submit(scheduler, make_sequence(), admitted=True)


@in_loop
def test_stalled_reader_is_told_from_a_slow_one():
    scheduler = make_scheduler(stall_timeout_s=10)
    sequence = submit(scheduler, make_sequence())
    scheduler.next_plan(0.0)
    for _ in range(12):
        step(sequence)
    assert scheduler.next_plan(1.0).decode == ()
    sequence.stream._read_steps += 1  # a slow reader: one step at 9 s
    sequence.emit(np.zeros(WIDTH, np.float32), np.zeros(4, np.int64))
    assert scheduler.next_plan(9.0).removed == ()
    sequence.stream._read_steps += 1
    sequence._codes.append(np.zeros(4, np.int64))
    sequence._codes.append(np.zeros(4, np.int64))
    assert scheduler.next_plan(9.5).removed == ()
    ((gone, error),) = scheduler.next_plan(19.6).removed
    assert gone is sequence
    assert isinstance(error, ReaderStalled)


@in_loop
def test_a_reader_that_has_read_since_the_last_plan_is_not_stalled():
    """However long a round takes: here a prefill of two seconds."""
    scheduler = make_scheduler(stall_timeout_s=30, buffer_steps=8, block_steps=1)
    sequence = submit(scheduler, make_sequence(max_steps=60))
    scheduler.next_plan(0.0)
    sequence.stream._put_steps = sequence.steps = 8
    for now in (1.0, 29.0):
        assert scheduler.next_plan(now).decode == ()
    sequence.stream._read_steps = 1  # at 30.9, and less than makes room
    assert scheduler.next_plan(31.0).removed == ()


@in_loop
def test_deadline_reaches_who_waits_too():
    scheduler = make_scheduler(slots=1)
    running = submit(scheduler, make_sequence(timeout_s=5))
    waiting = submit(scheduler, make_sequence(timeout_s=4))
    scheduler.next_plan(0.0)
    assert scheduler.next_deadline() == 4
    assert [sequence for sequence, _ in scheduler.next_plan(4.5).removed] == [waiting]
    ((gone, error),) = scheduler.next_plan(5.0).removed
    assert gone is running
    assert isinstance(error, DeadlineExceeded)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens in whatever order, nobody is lost, doubled, overtaken or starved."""

    @initialize(slots=st.integers(1, 4), rows=st.integers(1, 3), waiting=st.integers(0, 4), steps=st.integers(1, 3))
    def start(self, slots: int, rows: int, waiting: int, steps: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.config = EngineConfig.varied({
            "slots": slots, "prefill_rows": rows, "max_waiting": waiting, "steps_per_round": steps, "block_steps": 2,
            "buffer_steps": 8, "max_prompt": 64, "max_steps": 64, "stall_timeout_s": 5,
        })  # fmt: skip
        self.scheduler = Scheduler(self.config)
        self.now = 0.0
        self.inside: list[Sequence] = []
        self.gone: list[Sequence] = []

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    @rule(length=st.integers(1, 64), max_steps=st.integers(1, 20), timeout_s=st.floats(0.5, 50), admitted=st.booleans())
    def submit(self, length: int, max_steps: int, timeout_s: float, admitted: bool) -> None:
        async def make() -> Sequence:
            return make_sequence(length=length, max_steps=max_steps, now=self.now, timeout_s=timeout_s)

        sequence = self.loop.run_until_complete(make())
        free = self.config.slots - self.scheduler.num_running
        try:
            self.scheduler.submit(sequence, admitted=admitted, retry_after_s=1.0)
        except AtCapacity:
            assert not admitted
            assert self.scheduler.num_waiting - free >= self.config.max_waiting
        else:
            self.inside.append(sequence)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.scheduler.cancel(data.draw(st.sampled_from(self.inside)))

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def read(self, data: st.DataObject, steps: int) -> None:
        stream = data.draw(st.sampled_from(self.inside)).stream
        stream._read_steps += min(steps, stream.unread_steps)

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def round(self) -> None:
        waiting_before = [sequence for sequence in self.inside if sequence.slot is None and not sequence.cancelled]
        plan = self.scheduler.next_plan(self.now)
        for sequence, error in plan.removed:
            assert (error is None) == sequence.cancelled
            self._leave(sequence)
        assert len(plan.prefill) <= self.config.prefill_rows
        assert len({prefill_bucket(len(sequence.prompt.ids)) for sequence in plan.prefill}) <= 1
        still = [sequence for sequence in waiting_before if sequence in self.inside]
        if plan.prefill:
            assert plan.prefill[0] is still[0], "who came first is placed first"
        else:
            assert not still or self.scheduler.num_running == self.config.slots, "a free slot is never left to wait"
        for sequence in plan.decode:
            assert sequence.slot < plan.extent_slots
            assert sequence.length + self.config.steps_per_round <= plan.extent_positions or (
                plan.extent_positions == self.config.positions
            )
            for _ in range(self.config.steps_per_round):
                if sequence.steps < sequence.max_steps:
                    sequence.emit(np.zeros(WIDTH, np.float32), np.zeros(4, np.int64))
            assert sequence.pending_steps <= self.config.buffer_steps, "never more than the buffer is made ahead"
            if sequence.steps >= sequence.max_steps:
                self.scheduler.release(sequence)
                sequence.flush(FinishReason.LENGTH)
                self._leave(sequence)
            else:
                sequence.flush()
        assert set(plan.prefill) <= set(plan.decode), "who was prefilled decodes in the same round"

    def _leave(self, sequence: Sequence) -> None:
        self.inside.remove(sequence)  # raises if it was not there: nobody leaves twice
        self.gone.append(sequence)

    @invariant()
    def everybody_is_in_one_place(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            assert self.scheduler.num_waiting + self.scheduler.num_running == len(self.inside)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=examples(60), stateful_step_count=40)
