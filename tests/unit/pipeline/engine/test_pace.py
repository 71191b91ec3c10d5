"""Pace: how many rows leave every stream smooth."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import EngineConfig
from pipeline.engine.pace import Pace
from pipeline.engine.promises import ThroughputEstimate
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.sequence import Sequence
from pipeline.errors import DeadlineUnmeetable
from pipeline.ewma import ClippedEwma, Ewma
from pipeline.spec import STEPS_PER_SECOND
from pipeline.types import Lane, SamplingParams, SchedulingParams
from tests.support.factories import WIDTH, make_prompt, make_sequence

STEP_OF_SPEECH_S = 1 / STEPS_PER_SECOND  # a step of audio lasts so long
SLOTS = 16


def learned(fixed: float, per_row: float, *, slowest: float | None = 0.82, rows=(1, 2, 3), prefill: float = 0.0) -> Pace:
    """Steps of n rows take `fixed` + `each` x n of the time that their audio lasts."""
    pace = Pace(slowest, SLOTS)
    for number in rows * 20:
        step_s = (fixed + per_row * number) * STEP_OF_SPEECH_S
        pace.add(number, step_s, prefill * step_s)
    return pace


@given(fixed=st.floats(0.01, 0.7), per_row=st.floats(0.005, 0.3), slowest=st.floats(0.1, 1.0))
def test_one_row_more_would_be_too_slow(fixed, per_row, slowest):
    pace = learned(fixed, per_row, slowest=slowest)
    most = pace.most_rows
    if fixed + per_row > slowest * 1.0001:
        assert most == SLOTS, "not even one alone is smooth: nothing is gained by holding others back"
        assert pace.fast_rows == 0, "but bulk"
    elif fixed + per_row < slowest * 0.9999:
        assert fixed + per_row * most <= slowest + 1e-6
        assert most == SLOTS or fixed + per_row * (most + 1) > slowest - 1e-6


def test_before_the_first_round_and_without_a_limit_all_slots_may_be_taken():
    assert Pace(0.8, SLOTS).most_rows == SLOTS
    assert learned(0.1, 0.3, slowest=None).most_rows == SLOTS


def test_until_it_has_seen_rounds_of_two_sizes_three_rows_more_double_the_step_of_one():
    assert learned(0.2, 0.0, rows=(1,)).most_rows == 13
    assert learned(0.4, 0.0, rows=(1,)).most_rows == 5
    assert learned(0.7, 0.0, rows=(2,)).most_rows == 2


def test_what_it_has_learned_about_sizes_stays_when_they_do_not_change():
    pace = learned(0.2, 0.1)
    for _ in range(2000):
        pace.add(2, 0.4 * STEP_OF_SPEECH_S, 0.0)
    assert pace.most_rows == 6


def test_prefills_take_time_from_every_stream():
    assert learned(0.2, 0.1).most_rows == 6
    assert learned(0.2, 0.1, prefill=0.5).most_rows == 3


def test_a_process_that_was_stopped_is_not_slow():
    pace = learned(0.2, 0.1)
    pace.add(2, 60.0, 0.0)
    assert pace.most_rows == pytest.approx(6, abs=1)


def test_a_machine_that_becomes_slower_is_noticed():
    pace = learned(0.2, 0.05)
    assert pace.most_rows == 12
    for number in (5, 6, 7) * 300:
        pace.add(number, (0.2 + 0.1 * number) * STEP_OF_SPEECH_S, 0.0)
    assert pace.most_rows == 6


# The scheduler on an engine whose steps of n rows take 0.2 + 0.1 n of speech: six rows are smooth, seven are not.

SMOOTH = 6


def waiting_sequence(lane: Lane, *, steps: int, now: float = 0.0, promise_s: float | None = None) -> Sequence:
    sequence = make_sequence(max_steps=steps, now=now)
    sequence.prompt = replace(make_prompt(12, max_steps=steps), scheduling=SchedulingParams(lane, first_steps=4))
    sequence.sampling = SamplingParams(min_steps=steps)
    sequence.promised_at = None if promise_s is None else now + promise_s
    return sequence


class Engine:
    """The real scheduler, and time that passes with rounds: steps of n rows take `fixed` + `each` x n of their speech."""

    def __init__(self, fixed: float = 0.2, per_row: float = 0.1) -> None:
        values = {"slots": 10, "max_prompt": 64, "max_steps": 1024, "max_waiting": 64, "buffer_steps": 4096, "block_steps": 1}
        self.scheduler = Scheduler(EngineConfig.varied(values | {"max_rtf": 0.82, "bulk_patience_s": 2.0}))
        self.fixed, self.per_row = fixed, per_row
        self.now = 0.0
        self.rows: list[int] = []
        self.done: list[Sequence] = []

    def submit(self, sequence: Sequence) -> None:
        throughput = ThroughputEstimate(self.now, STEP_OF_SPEECH_S)
        self.scheduler.submit(sequence, admitted=False, retry_after_s=1.0, throughput=throughput)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            plan = self.scheduler.next_plan(self.now)
            for sequence in plan.restore:
                sequence.preempted_state = None
            step_s = (self.fixed + self.per_row * len(plan.decode)) * STEP_OF_SPEECH_S
            self.now += step_s
            self.rows.append(len(plan.decode))
            if plan.decode:
                self.scheduler.pace.add(len(plan.decode), step_s, 0.0)
            for sequence in plan.decode:
                sequence.emit(np.zeros(WIDTH, np.float32), np.zeros(4, np.int64))
                sequence.first_block_at = sequence.first_block_at or self.now
                if sequence.steps >= sequence.max_steps:
                    self.scheduler.release(sequence)
                    self.done.append(sequence)
            self.scheduler.check()


def test_a_request_that_would_slow_listeners_waits_and_is_served():
    async def work() -> None:
        engine = Engine()
        for number in range(30):
            engine.submit(waiting_sequence(Lane.STANDARD if number % 3 else Lane.INTERACTIVE, steps=60))
        engine.run(600)
        assert len(engine.done) == 30
        assert max(engine.rows) == SMOOTH, "all that are smooth, and no more"

    asyncio.run(work())


def test_bulk_takes_every_slot_until_somebody_listens():
    async def work() -> None:
        engine = Engine()
        for _ in range(12):
            engine.submit(waiting_sequence(Lane.BULK, steps=200))
        engine.run(30)
        assert engine.rows[-1] == 10
        engine.submit(waiting_sequence(Lane.INTERACTIVE, steps=20, now=engine.now))
        engine.run(3)
        interactive = [row for row in engine.scheduler._running() if row.lane is Lane.INTERACTIVE]
        assert len(interactive) == 1, "it takes a slot from bulk at once"
        engine.run(1500)
        assert len(engine.done) == 13

    asyncio.run(work())


def test_a_reader_that_pauses_takes_nobodys_place():
    async def work() -> None:
        engine = Engine()
        for _ in range(10):
            engine.submit(waiting_sequence(Lane.STANDARD, steps=250))
        engine.run(30)
        for row in engine.scheduler._running()[:2]:
            row.stream._put_steps += 5000  # more than the buffer holds: nothing is read
        engine.run(4)
        assert engine.rows[-1] == SMOOTH
        assert engine.scheduler.num_running == SMOOTH + 2

    asyncio.run(work())


def test_promises_count_with_the_slots_that_may_be_taken():
    async def work() -> None:
        engine = Engine()
        for _ in range(SMOOTH):
            engine.submit(waiting_sequence(Lane.STANDARD, steps=200))
        engine.run(60)
        with pytest.raises(DeadlineUnmeetable):
            engine.submit(waiting_sequence(Lane.STANDARD, steps=60, now=engine.now, promise_s=1.0))
        engine.submit(waiting_sequence(Lane.STANDARD, steps=60, now=engine.now, promise_s=9.0))

    asyncio.run(work())


@pytest.mark.parametrize(("fixed", "per_row"), [(0.3, 0.3), (0.7, 0.5)], ids=["one row is fast enough", "none is"])
def test_a_listener_beside_an_old_book_is_not_slowed_down(fixed: float, per_row: float):
    """Bulk that has waited long decodes beside a listener only with the time of audio that is ahead."""

    async def work() -> None:
        engine = Engine(fixed, per_row)
        books = [waiting_sequence(Lane.BULK, steps=1000) for _ in range(2)]
        for book in books:
            engine.submit(book)
        engine.run(150)
        assert engine.now > 2.0, "they are overdue"
        listener = waiting_sequence(Lane.INTERACTIVE, steps=800, now=engine.now)
        engine.submit(listener)
        engine.run(1)
        assert listener.slot is not None, "at once"
        before, played = books[0].steps, []
        while listener not in engine.done:
            engine.run(1)
            played.append((engine.now - listener.first_block_at) / STEP_OF_SPEECH_S - listener.steps)
        beside = books[0].steps - before
        if fixed + per_row < 0.82:
            assert max(played) <= 1, "no gap"
            assert beside > 50, "and the book goes on"
        else:
            assert beside == 0

    asyncio.run(work())


# The running mean, counted by hand.


def test_a_guess_gives_way_to_the_first_measurement_and_anything_else_counts():
    guessed, begun = Ewma(0.25, 8.0, is_guess=True), Ewma(0.25, 8.0)
    assert guessed.value == begun.value == 8.0
    for mean in (guessed, begun):
        mean.add(4.0)
    assert (guessed.value, begun.value) == (4.0, 7.0)
    for mean in (guessed, begun):
        mean.add(0.0)
    assert guessed.value == pytest.approx(3.0)
    assert begun.value == pytest.approx(5.25)


def test_a_clipped_mean_begins_with_its_first_measurement_and_bounds_every_other():
    mean = ClippedEwma(0.5, 0.0, most_times=4.0)
    for measured, value in ((0.0, 0.0), (2.0, 2.0), (1000.0, 5.0), (1.0, 3.0)):
        mean.add(measured)
        assert mean.value == value
    assert ClippedEwma(0.5, 1.0, most_times=4.0).value == 1.0
