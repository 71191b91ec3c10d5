"""Promises: plays the queue forward, and refuses a newcomer that would break a promised first audio.

In:    a newcomer, the waiting queue, who is in the slots, how fast the engine works at present
Out:   DeadlineUnmeetable, or nothing
Owns:  nothing
Never: torch, clocks, the slot table

The playback asks turns.py, as the plan of every round does, for who gets the next slot and which rows decode. It assumes that
each sequence is as long as almost all are, and that a step takes longer than at present.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from pipeline.config import EngineConfig
from pipeline.engine.pace import Pace
from pipeline.engine.sequence import Sequence
from pipeline.engine.turns import SlotCounts, next_turn, num_decoding
from pipeline.engine.waiting_queue import WaitQueue
from pipeline.errors import DeadlineUnmeetable
from pipeline.spec import STEPS_PER_SECOND
from pipeline.types import Lane

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
    since: int | None = None
    """the round from which it decodes; None while it does not"""

    @property
    def stop(self) -> int:
        """The round before which it is heard or ends; it decodes."""
        assert self.since is not None
        return self.since + (self.unheard or self.rounds)

    def advance(self, number: int) -> None:
        """Counts the rounds up to this one."""
        if self.since is not None:
            self.rounds -= number - self.since
            self.unheard = max(0, self.unheard - number + self.since)
            self.since = number


class Playback:
    """The rounds to come, as far as they can be foreseen."""

    def __init__(
        self,
        config: EngineConfig,
        queue: WaitQueue,
        running: list[Sequence],
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
        self._pace = pace
        self._rounds_ahead = rounds_ahead
        self._rows: dict[Sequence, _Row] = {}
        self._preempted: dict[Sequence, _Row] = {}
        self._stops: list[tuple[int, int, _Row]] = []
        self._pushed = 0
        self._decoding = 0
        self._round = 0
        self._now = throughput.now
        waiting = [*queue, newcomer] if newcomer else [*queue]
        self._unheard = sum(is_promised(sequence) for sequence in (*running, *waiting))
        for sequence in running:
            self._rows[sequence] = row = self._row(sequence)
            if sequence.lane is not Lane.BULK:
                self._start(row)

    def first_audio(self) -> Iterator[tuple[Sequence, float]]:
        """Yields each promised sequence that has not been heard, with the time of its first audio [monotonic s]."""
        if self._rows:  # the round that is under way
            self._now += self._round_s(len(self._rows))
        while self._unheard:
            may_place_more = self._fill_slots()
            self._choose_bulk()
            while self._stops and self._is_stale(*self._stops[0]):
                heapq.heappop(self._stops)
            if not self._stops:
                return
            stop = self._round + 1 if may_place_more else max(self._round, self._stops[0][0])
            self._now += (stop - self._round) * self._round_s(self._decoding)
            self._round = stop
            while self._stops and self._stops[0][0] <= stop:
                entry = heapq.heappop(self._stops)
                if not self._is_stale(*entry):
                    yield from self._stopped(entry[2])

    def _fill_slots(self) -> bool:
        """Gives slots as one plan does; returns True if the plan of the next round may give more."""
        placed: list[Sequence] = []
        prefilled = 0
        while len(placed) < self._config.prefill_rows and (turn := next_turn(self._order, self._slots)) is not None:
            if turn.victim in placed:
                break
            self._order.pop(turn.sequence)
            is_restored = turn.sequence in self._preempted or turn.sequence.preempted_state is not None
            row = self._preempted.pop(turn.sequence, None) or self._row(turn.sequence)
            self._slots.take(turn, restores=is_restored)
            if turn.victim is not None:
                self._preempt(turn.victim)
            self._rows[turn.sequence] = row
            if turn.sequence.lane is not Lane.BULK:
                self._start(row)
            placed.append(turn.sequence)
            prefilled += not is_restored
        if prefilled:
            self._now += self._throughput.prefill_s
        return bool(placed)

    def _preempt(self, victim: Sequence) -> None:
        self._preempted[victim] = row = self._rows.pop(victim)
        if row.since is not None:  # its rounds in flight are waited for
            self._now += self._rounds_ahead * self._round_s(self._decoding)
        self._hold(row)
        self._order.push(victim)

    def _choose_bulk(self) -> None:
        """Starts the bulk rows that decode in the next round, and stops those that do not."""
        slots = self._slots
        num = num_decoding(slots.bulk, slots.listened, slots.fast_rows)
        for sequence in slots.bulk[:num]:
            self._start(self._rows[sequence])
        for sequence in slots.bulk[num:]:
            self._hold(self._rows[sequence])

    def _start(self, row: _Row) -> None:
        if row.since is None:
            row.since = self._round
            self._decoding += 1
            self._push(row)

    def _hold(self, row: _Row) -> None:
        if row.since is not None:
            row.advance(self._round)
            row.since = None
            self._decoding -= 1

    def _stopped(self, row: _Row) -> Iterator[tuple[Sequence, float]]:
        was_unheard = row.unheard > 0
        row.advance(self._round)
        if was_unheard:
            self._unheard -= 1
            yield row.sequence, self._now
        if row.rounds > 0:
            self._push(row)
            return
        self._hold(row)
        del self._rows[row.sequence]
        self._slots.leave(row.sequence)

    def _push(self, row: _Row) -> None:
        heapq.heappush(self._stops, (row.stop, self._pushed, row))
        self._pushed += 1

    def _is_stale(self, stop: int, _: int, row: _Row) -> bool:
        return row.since is None or row.stop != stop

    def _row(self, sequence: Sequence) -> _Row:
        steps_per_round = self._config.steps_per_round
        longest = self._queue.longest(sequence)
        rounds = max(1, math.ceil((longest - sequence.steps) / steps_per_round)) + self._rounds_ahead
        if sequence.paused_since is not None:  # it goes on as its reader does
            rounds = max(rounds, math.ceil((longest - sequence.steps) / STEPS_PER_SECOND / self._round_s(1)))
        unheard = 0
        if is_promised(sequence):
            wanted = min(float(sequence.prompt.scheduling.first_steps), longest) - sequence.steps
            unheard = min(rounds, max(1, math.ceil(wanted / steps_per_round)))
        return _Row(sequence, rounds, unheard)

    def _round_s(self, rows: int) -> float:
        return self._config.steps_per_round * max(self._throughput.step_s, RESERVE * self._pace.step_s(rows))


def is_promised(sequence: Sequence) -> bool:
    """Returns True if the sequence is promised a first audio that it has not had yet."""
    return sequence.promised_at is not None and sequence.steps < sequence.prompt.scheduling.first_steps


def check_promises(newcomer: Sequence, play: Callable[[Sequence | None], Playback], *, worth_s: float) -> None:
    """Checks that the newcomer, and each other promised sequence, gets its first audio in time.

    A sequence that would be late without the newcomer too does not count, unless he makes it later by more than `worth_s`.

    Args:
        play: returns the playback with the newcomer, or with None without him.

    Raises:
        DeadlineUnmeetable: one of them would be late.
    """
    late = [(sequence, heard) for sequence, heard in play(newcomer).first_audio() if heard > due_of(sequence)]
    if not late:
        return
    without = {} if newcomer in dict(late) else dict(play(None).first_audio())
    for sequence, heard in late:
        late_s = heard - due_of(sequence)
        if sequence is newcomer:
            _refuse("its first audio", late_s)
        elif without and heard > max(due_of(sequence), without[sequence] + worth_s):
            _refuse("the first audio of a request already admitted", late_s)


def due_of(sequence: Sequence) -> float:
    """Returns when the first audio of a promised sequence is due [monotonic s]."""
    assert sequence.promised_at is not None
    return sequence.promised_at


def _refuse(what: str, late_s: float) -> NoReturn:
    raise DeadlineUnmeetable(
        f"{what} would be {late_s:.1f} s later than promised (deadline_ms, or the lane's deadline); "
        f"try again in {late_s:.1f} s, or in a lane with a later one",
        retry_after_s=max(late_s, 0.1),
    )
