"""Promises: plays the queue forward, and refuses a newcomer that would break a promised first audio.

In:    a newcomer, the waiting queue, who is in the slots, how fast the engine works at present
Out:   DeadlineUnmeetable, or nothing
Never: torch, clocks, the slot table

The playback asks turns.py, as the plan of every round does, for who gets the next slot and which rows decode. It assumes that
each sequence is as long as almost all are, and that a step takes longer than at present.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from pipeline.config import EngineConfig
from pipeline.engine.pace import Pace
from pipeline.engine.sequence import Sequence
from pipeline.engine.turns import BULK, SlotCounts, next_turn, num_decoding
from pipeline.engine.waiting_queue import WaitQueue
from pipeline.errors import DeadlineUnmeetable
from pipeline.spec import STEPS_PER_SECOND

IDLE = -1
RESERVE = 1.25  # steps are assumed to take this many times longer than at present


@dataclass(frozen=True, slots=True)
class ThroughputEstimate:
    """How fast the engine works at present."""

    now: float
    """when it was estimated [monotonic s]"""
    step_s: float
    """duration of one step of all slots [s]"""
    prefill_s: float = 0.0
    """duration of one prefill call [s]"""


@dataclass(slots=True, eq=False)
class _Row:
    """A sequence in a slot of the playback. Rounds are numbered from 0, the next one."""

    sequence: Sequence
    rounds: int
    """rounds that it still decodes"""
    unheard: int
    """rounds until its first audio; 0: it has been heard, or nothing is promised"""
    since: int = 0
    """the round from which it decodes"""
    end: int = IDLE
    """the round before which it ends; IDLE while it does not decode"""


class Playback:
    """The rounds to come, as far as they can be foreseen."""

    def __init__(
        self,
        config: EngineConfig,
        queue: WaitQueue,
        running: tuple[Sequence, ...],
        slots: SlotCounts,
        throughput: ThroughputEstimate,
        *,
        pace: Pace,
        rounds_ahead: int,
        newcomer: Sequence | None,
    ) -> None:
        """
        Args:
            slots: the counts of those that run; the playback changes them.
        """
        self._config = config
        self._queue = queue
        self._order = queue.order(newcomer)
        self._slots = slots
        self._throughput = throughput
        self._rounds_ahead = rounds_ahead
        steps_s = steps_assumed_s(pace, throughput, np.arange(config.slots + 1))
        self._durations: list[float] = (config.steps_per_round * steps_s).tolist()  # of a round of so many rows [s]
        self._bulk: dict[Sequence, _Row] = {}
        self._preempted: set[Sequence] = set()  # in the playback
        self._idle: set[_Row] = set()  # those of bulk that do not decode
        self._may_decode: int | None = None  # rows of bulk; None: they have to be chosen again
        self._ends: list[tuple[int, int, _Row]] = []  # a heap of rounds, each with the row that ends before it
        self._started = 0
        self._decoding = 0
        self._round = 0
        self._now = throughput.now
        # Between two rounds listed here every round takes as long: their numbers, the time before each, its duration.
        self._changes: list[int] = []
        self._times: list[float] = []
        self._paces: list[float] = []
        # Promised sequences that decode or have ended, each with the round after which its first audio is there.
        self._audible_at: dict[Sequence, int] = {}
        self._last_heard = 0
        self._rows = self._foresee([*running, *queue, newcomer] if newcomer else [*running, *queue])
        self._unheard = sum(row.unheard > 0 for row in self._rows.values())  # of those promised, the ones that do not decode
        if running:  # the round that is under way
            self._now += self._durations[len(running)]
        for sequence in running:
            self._add(self._rows[sequence])

    def first_audio(self) -> dict[Sequence, float]:
        """Returns when each promised sequence that has not been heard gets its first audio [monotonic s], if it gets any."""
        ends = self._ends
        while self._unheard or self._round < self._last_heard:
            may_place_more = self._fill_slots()
            self._choose_bulk()
            while ends and ends[0][0] != ends[0][2].end:  # it was left out meanwhile
                heapq.heappop(ends)
            if not ends:
                break
            duration = self._durations[self._decoding]
            self._changes.append(self._round)
            self._times.append(self._now)
            self._paces.append(duration)
            stop = self._round + 1 if may_place_more else ends[0][0]
            self._now += (stop - self._round) * duration
            self._round = stop
            while ends and ends[0][0] <= stop:
                end, _, row = heapq.heappop(ends)
                if row.end == end:
                    self._end(row)
        numbers = np.array([*self._audible_at.values()], int)
        change = np.searchsorted(self._changes, numbers) - 1
        times = np.array(self._times)[change] + (numbers - np.array(self._changes, int)[change]) * np.array(self._paces)[change]
        return {
            sequence: time
            for (sequence, number), time in zip(self._audible_at.items(), times.tolist(), strict=True)
            if number <= self._round
        }

    def _fill_slots(self) -> bool:
        """Gives slots as one plan does; returns True if the plan of the next round gives more."""
        placed: list[Sequence] = []
        prefilled = 0
        turn = next_turn(self._order, self._slots)
        while turn is not None and len(placed) < self._config.prefill_rows and turn.victim not in placed:
            sequence, victim = turn
            self._order.pop(sequence)
            is_restored = sequence.preempted_state is not None or sequence in self._preempted
            self._slots.take(turn, restores=is_restored)
            if victim is not None:
                self._preempt(victim)
            self._add(self._rows[sequence])
            placed.append(sequence)
            prefilled += not is_restored
            turn = next_turn(self._order, self._slots)
        if prefilled:
            self._now += self._throughput.prefill_s
        return bool(placed) and turn is not None

    def _add(self, row: _Row) -> None:
        if row.sequence.lane is BULK:
            self._bulk[row.sequence] = row
            self._idle.add(row)
            self._may_decode = None
        else:
            self._start(row)

    def _preempt(self, victim: Sequence) -> None:
        row = self._bulk.pop(victim)
        self._preempted.add(victim)
        self._may_decode = None
        if row in self._idle:
            self._idle.remove(row)
        else:  # its rounds in flight are waited for
            self._now += self._rounds_ahead * self._durations[self._decoding]
            self._hold(row)
        self._order.push(victim)

    def _choose_bulk(self) -> None:
        """Starts the bulk rows that decode in the next round, and stops those that do not."""
        bulk = self._slots.bulk
        num = num_decoding(bulk, self._slots.listened, self._slots.fast_rows)
        if num == self._may_decode:
            return
        self._may_decode = num
        if num == len(bulk):
            while self._idle:
                self._start(self._idle.pop())
            return
        for sequence in bulk[:num]:
            if (row := self._bulk[sequence]) in self._idle:
                self._idle.remove(row)
                self._start(row)
        for sequence in bulk[num:]:
            if (row := self._bulk[sequence]) not in self._idle:
                self._idle.add(row)
                self._hold(row)

    def _start(self, row: _Row) -> None:
        row.since = self._round
        row.end = end = self._round + row.rounds
        self._decoding += 1
        self._started += 1
        heapq.heappush(self._ends, (end, self._started, row))
        if row.unheard:
            self._audible_at[row.sequence] = number = self._round + row.unheard
            self._unheard -= 1
            if number > self._last_heard:
                self._last_heard = number

    def _hold(self, row: _Row) -> None:
        decoded = self._round - row.since
        row.end = IDLE
        self._decoding -= 1
        row.rounds -= decoded
        if row.unheard > decoded:
            del self._audible_at[row.sequence]
            self._unheard += 1
        row.unheard = max(0, row.unheard - decoded)

    def _end(self, row: _Row) -> None:
        row.end = IDLE
        self._decoding -= 1
        self._slots.leave(row.sequence)
        if row.sequence in self._bulk:
            del self._bulk[row.sequence]
            self._may_decode = None

    def _foresee(self, sequences: list[Sequence]) -> dict[Sequence, _Row]:
        """Returns the row of each sequence, as if it got a slot in the first round."""
        config = self._config
        steps = np.array([sequence.steps for sequence in sequences])
        remaining = self._queue.longest(sequences) - steps
        rounds = np.maximum(1, np.ceil(remaining / config.steps_per_round)) + self._rounds_ahead
        is_paused = np.array([sequence.paused_since is not None for sequence in sequences])  # they go on as their readers do
        read_s = remaining[is_paused] / STEPS_PER_SECOND
        rounds[is_paused] = np.maximum(rounds[is_paused], np.ceil(read_s / self._durations[1]))
        first = np.array([sequence.prompt.scheduling.first_steps if is_promised(sequence) else 0 for sequence in sequences])
        unheard = np.clip(np.ceil(np.minimum(first - steps, remaining) / config.steps_per_round), 1, rounds) * (first > 0)
        rows = zip(sequences, rounds.astype(int).tolist(), unheard.astype(int).tolist(), strict=True)
        return {sequence: _Row(sequence, rounds, unheard) for sequence, rounds, unheard in rows}


def is_promised(sequence: Sequence) -> bool:
    """Returns True if the sequence is promised a first audio that it has not had yet."""
    return sequence.promised_at is not None and sequence.steps < sequence.prompt.scheduling.first_steps


def steps_assumed_s(pace: Pace, throughput: ThroughputEstimate, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the durations that steps of so many rows are assumed to have [s]."""
    fixed_s, row_s = pace.line()
    assumed: NDArray[np.float64] = np.maximum(throughput.step_s, RESERVE * (fixed_s + row_s * rows))
    return assumed


def are_surely_kept(
    sequences: tuple[Sequence, ...],
    waiting: int,
    slots: SlotCounts,
    throughput: ThroughputEstimate,
    *,
    pace: Pace,
    config: EngineConfig,
) -> bool:
    """Returns True if no playback could show a promise broken: all who wait get a slot and a row soon, and there is no bulk.

    Then all decode in every round, and none takes longer than the one of all rows.

    Args:
        sequences: a newcomer, those that run and those that wait.
        waiting: how many wait, without him.
        slots: the counts of those that run.
    """
    promised = [sequence for sequence in sequences if is_promised(sequence)]
    if not promised:
        return True
    num = len(sequences)
    running, rows = num - 1 - waiting, slots.listened + waiting + 1
    has_room = slots.free > waiting and rows <= slots.most_rows and rows == num
    if not has_room or slots.bulk or any(sequence.lane is BULK for sequence in (sequences[0], *sequences[running + 1 :])):
        return False
    now_s, all_s = config.steps_per_round * steps_assumed_s(pace, throughput, np.array([running, num]))
    rounds = -(-(waiting + 1) // config.prefill_rows)  # until the last one has a slot
    begins_at = throughput.now + now_s + rounds * throughput.prefill_s + (rounds - 1) * all_s

    def is_heard_in_time(sequence: Sequence) -> bool:
        unheard = -(-(sequence.prompt.scheduling.first_steps - sequence.steps) // config.steps_per_round)
        return bool(begins_at + max(1, unheard) * all_s <= due_of(sequence))

    return all(map(is_heard_in_time, promised))


def check_promises(newcomer: Sequence, play: Callable[[Sequence | None], Playback], *, worth_s: float) -> None:
    """Checks that the newcomer, and each other promised sequence, gets its first audio in time.

    A sequence that would be late without the newcomer too does not count, unless he makes it later by more than `worth_s`.

    Args:
        play: returns the playback with the newcomer, or with None without him.

    Raises:
        DeadlineUnmeetable: one of them would be late.
    """
    late = {sequence: time for sequence, time in play(newcomer).first_audio().items() if time > due_of(sequence)}
    if newcomer in late:
        _refuse("its first audio", late[newcomer] - due_of(newcomer))
    without = play(None).first_audio() if late else {}
    for sequence, time in late.items():
        if time > without.get(sequence, math.inf) + worth_s:
            _refuse("the first audio of a request already admitted", time - due_of(sequence))


def due_of(sequence: Sequence) -> float:
    """Returns when the first audio of a promised sequence is due [monotonic s]."""
    assert sequence.promised_at is not None
    return sequence.promised_at


def _refuse(subject: str, late_s: float) -> NoReturn:
    raise DeadlineUnmeetable(
        f"{subject} would be {late_s:.1f} s later than promised (deadline_ms, or the lane's deadline); "
        f"try again in {late_s:.1f} s, or in a lane with a later one",
        retry_after_s=max(late_s, 0.1),
    )
