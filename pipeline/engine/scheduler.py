"""Scheduler: decides who runs in the next round, who waits, who leaves.

In:    sequences that were submitted or cancelled, what the last round made of them, the time `now` [monotonic s]
Out:   one Plan a round
Owns:  the waiting queue and the slot table
Never: torch, clocks of its own, audio

A sequence is in exactly one place: waiting, in one slot, or gone. Slots go in the order of engine/line.py, with one exception:
prompts that share the first one's padded length may be prefilled together with it.

Where an interactive sequence finds no slot, the bulk one that would be served last gives its own up. All its slot was, keys and
values included, is kept as it is and put back later: no bit of its steps is computed anew, so none can differ.

Who is admitted is promised its first audio: a newcomer whose own would be late, or that would make somebody else's late, is
refused before it costs a step.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.config import EngineConfig
from pipeline.engine.sequence import Sequence
from pipeline.engine.waiting_queue import WaitQueue
from pipeline.errors import AtCapacity, DeadlineExceeded, DeadlineUnmeetable, ReaderStalled, SynthesisError
from pipeline.types import Lane

PREFILL_BUCKET = 16
"""prompts are padded to a multiple of this [positions]"""
EXTENT_BUCKET = 64
"""a decode step looks at a multiple of this many positions"""


@dataclass(frozen=True, slots=True)
class ThroughputEstimate:
    """How fast things go at present."""

    now: float
    """monotonic seconds"""
    step_s: float
    """one step of all slots"""
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: who is prefilled, who decodes afterwards, who has left before it."""

    prefill: tuple[Sequence, ...]
    """newly placed, all of one bucket"""
    preempt: tuple[tuple[Sequence, int], ...]
    """interrupted, and the slot each has left"""
    restore: tuple[Sequence, ...]
    """placed again"""
    decode: tuple[Sequence, ...]
    extent_slots: int
    """every decoding slot is below this"""
    extent_positions: int
    """every position a decoding slot reads is below this"""
    left: tuple[tuple[Sequence, SynthesisError | None], ...]
    """sequences that were taken out, and why; None when their reader had gone"""


def prefill_bucket(length: int) -> int:
    """The padded length of a prompt: a function of the prompt alone."""
    return _round_up(length, PREFILL_BUCKET)


class Scheduler:
    """The waiting queue and the slot table."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.queue = WaitQueue(config)
        self._plans = 0
        self._slots: list[Sequence | None] = [None] * config.slots
        # The lowest free slot first keeps the used ones together, so that a step can leave out the rest.
        self._free = list(range(config.slots))
        self.rounds_ahead = 0
        """rounds that were launched and not yet read when a plan is made"""

    @property
    def num_waiting(self) -> int:
        return len(self.queue)

    @property
    def num_running(self) -> int:
        return self._config.slots - len(self._free)

    def submit(
        self, sequence: Sequence, *, admitted: bool, retry_after_s: float, throughput: ThroughputEstimate | None = None
    ) -> None:
        """Queue a sequence.

        Args:
            throughput: what a step takes; None: nobody knows yet, and nothing is promised.

        Raises:
            AtCapacity: nobody is admitted beyond the free slots plus `max_waiting`, bulk beyond half of it, unless `admitted`
                already.
            DeadlineUnmeetable: there is room, but not in time.
        """
        if not admitted:
            room = len(self._free) + self._config.max_waiting - len(self.queue)
            # Bulk leaves half of the waiting room to the others.
            half = len(self._free) + -(-self._config.max_waiting // 2) - self.queue.count(Lane.BULK)
            if room <= 0 or (sequence.lane is Lane.BULK and half <= 0):
                raise AtCapacity(
                    f"all {self._config.slots} slots are taken and {len(self.queue)} requests wait; the limit is "
                    f"{self._config.max_waiting} (engine.max_waiting), half of it for bulk; try again in {retry_after_s:.1f} s",
                    retry_after_s=retry_after_s,
                )
            if throughput is not None:
                self._check_promises(sequence, throughput)
        self.queue.join(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """The reader has gone: the next plan no longer knows the sequence."""
        sequence.cancelled = True

    def next_plan(self, now: float) -> Plan:
        """Take out who must leave, place who can be placed, choose who decodes."""
        self._plans += 1
        left = self._take_out(now)
        preempt = self._interrupt()
        prefill, restore = self._schedule()
        decode = tuple(sequence for sequence in self._running() if self._has_room(sequence, now) and not sequence.must_yield)
        for sequence in decode:
            sequence.last_planned = self._plans
        # Steps of this round are at positions length .. length + steps_per_round - 1, behind those of rounds in flight.
        reach = max((sequence.length for sequence in decode), default=0)
        reach += (1 + self.rounds_ahead) * self._config.steps_per_round
        return Plan(
            prefill=prefill,
            preempt=preempt,
            restore=restore,
            decode=decode,
            extent_slots=max((_slot(sequence) for sequence in decode), default=-1) + 1,
            extent_positions=min(_round_up(reach, EXTENT_BUCKET), self._config.positions),
            left=left,
        )

    def holds(self, sequence: Sequence) -> bool:
        """Whether the sequence still is in its slot."""
        return sequence.slot is not None and self._slots[sequence.slot] is sequence

    def release(self, sequence: Sequence) -> None:
        """Give the sequence's slot back."""
        slot = _slot(sequence)
        assert self._slots[slot] is sequence, "a slot is released by its owner only"
        self._slots[slot] = None
        heapq.heappush(self._free, slot)

    def next_deadline(self) -> float | None:
        """When, with nothing else happening, somebody must be taken out [monotonic s]."""
        times = [sequence.deadline for sequence in self._everybody()]
        times += [
            sequence.paused_since + self._config.stall_timeout_s
            for sequence in self._running()
            if sequence.paused_since is not None
        ]
        return min(times, default=None)

    def drain(self) -> list[Sequence]:
        """Forget everybody; returns who was there."""
        everybody = self._everybody()
        self.queue.clear()
        for sequence in self._running():
            self.release(sequence)
        return everybody

    def check(self) -> None:
        """The invariants, for tests and for idle moments."""
        running = self._running()
        assert len(running) + len(self._free) == self._config.slots, "free and used slots make all slots"
        assert len(set(self._free)) == len(self._free), "a slot is free once"
        assert all(self._slots[slot] is None for slot in self._free), "a free slot has no owner"
        assert all(sequence.slot == slot for slot, sequence in enumerate(self._slots) if sequence is not None)
        assert all(sequence.slot is None for sequence in self.queue), "who waits has no slot"
        assert self._num_preempted() <= self._config.max_preempted, "no more are interrupted than may be"
        assert all(sequence.length <= self._config.positions for sequence in running), "no sequence outgrows its slot"

    def _everybody(self) -> list[Sequence]:
        return [*self.queue, *self._running()]

    def _running(self) -> list[Sequence]:
        return [sequence for sequence in self._slots if sequence is not None]

    def _take_out(self, now: float) -> tuple[tuple[Sequence, SynthesisError | None], ...]:
        left = [(sequence, self._why_leave(sequence, now)) for sequence in self._everybody() if self._must_leave(sequence, now)]
        gone = {id(sequence) for sequence, _ in left}
        if gone:
            self.queue.leave(gone)
        for sequence, _ in left:
            if sequence.slot is not None:
                self.release(sequence)
        return tuple(left)

    def _must_leave(self, sequence: Sequence, now: float) -> bool:
        return sequence.cancelled or now >= sequence.deadline or self._is_stalled(sequence, now)

    def _why_leave(self, sequence: Sequence, now: float) -> SynthesisError | None:
        if sequence.cancelled:
            return None
        if self._is_stalled(sequence, now):
            return ReaderStalled(
                f"nothing was read for {self._config.stall_timeout_s:g} s (engine.stall_timeout_s) "
                f"while {sequence.pending_steps} steps were ready"
            )
        return DeadlineExceeded(
            f"the segment was not finished in its {sequence.deadline - sequence.submitted_at:.1f} s; "
            f"{sequence.steps} of at most {sequence.max_steps} steps were made"
        )

    def _is_stalled(self, sequence: Sequence, now: float) -> bool:
        return sequence.paused_since is not None and now - sequence.paused_since >= self._config.stall_timeout_s

    def _schedule(self) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Whom to prefill, and who goes on. One prefill call a round: a second one would be heard in every running stream."""
        placed: list[Sequence] = []
        prefill: list[Sequence] = []
        if not self._free or not self.queue:
            return (), ()
        for sequence in self.queue.order():
            if not self._free or len(placed) == self._config.prefill_rows:
                break
            if sequence.preempted_state is None:
                if prefill and prefill_bucket(len(sequence.prompt.ids)) != prefill_bucket(len(prefill[0].prompt.ids)):
                    continue
                prefill.append(sequence)
            sequence.slot = heapq.heappop(self._free)
            self._slots[sequence.slot] = sequence
            placed.append(sequence)
        self.queue.leave({id(sequence) for sequence in placed})
        return tuple(prefill), tuple(sequence for sequence in placed if sequence.preempted_state is not None)

    # -- interrupting ---------------------------------------------------------------------------------------------

    def _interrupt(self) -> tuple[tuple[Sequence, int], ...]:
        """Bulk sequences that give up their slot now. One whose last round is still in flight stops, and follows later."""
        parked: list[tuple[Sequence, int]] = []
        for sequence in self._running():
            sequence.must_yield = False
        urgent = [sequence for sequence in self.queue if sequence.lane is Lane.INTERACTIVE]
        if not urgent or not self._config.max_preempted:
            return ()
        urgent.sort(key=self.queue.priority_key)
        wanting = urgent[len(self._free) :]
        for sequence, victim in zip(wanting, self._interruptible(), strict=False):
            if self.queue.priority_key(victim) <= self.queue.priority_key(sequence):
                break  # it has been patient long enough
            if self._plans - victim.last_planned <= self.rounds_ahead:
                victim.must_yield = True
                continue
            slot = _slot(victim)
            self.release(victim)
            victim.slot = None
            victim.preempted_state = True  # the engine puts what the runner keeps in its place
            victim.paused_since = None
            self.queue.rejoin(victim)
            parked.append((victim, slot))
        return tuple(parked)

    def _interruptible(self) -> list[Sequence]:
        """Running bulk sequences, the least urgent first, as many as may still be parked. None before it has been heard."""
        rows = [row for row in self._running() if row.lane is Lane.BULK and row.steps >= row.prompt.scheduling.first_steps]
        rows.sort(key=self.queue.priority_key, reverse=True)
        return rows[: max(0, self._config.max_preempted - self._num_preempted())]

    def _num_preempted(self) -> int:
        return sum(sequence.preempted_state is not None for sequence in self.queue)

    # -- promises -------------------------------------------------------------------------------------------------

    def _check_promises(self, newcomer: Sequence, throughput: ThroughputEstimate) -> None:
        """Raises:
        DeadlineUnmeetable: it, or somebody behind it in the line, would be heard later than promised.
        """
        if newcomer.promised_at is None and all(sequence.promised_at is None for sequence in self.queue):
            return
        if not self.queue and not self.num_running:
            return  # nobody could serve it sooner, and only who runs shows how fast things go now
        behind = False
        for sequence, start in self._starts(newcomer, throughput):
            behind = behind or sequence is newcomer
            if not behind or sequence.promised_at is None or sequence.preempted_state is not None:
                continue
            steps = min(float(sequence.prompt.scheduling.first_steps), self.queue.predict(sequence))
            late_s = start + throughput.prefill_s + steps * throughput.step_s - sequence.promised_at
            if late_s > 0:
                whose = "its first audio" if sequence is newcomer else "the first audio of somebody already admitted"
                raise DeadlineUnmeetable(
                    f"{whose} would be {late_s:.1f} s later than promised (deadline_ms, or the lane's deadline); "
                    f"try again in {late_s:.1f} s, or in a lane with a later one",
                    retry_after_s=max(late_s, 0.1),
                )

    def _starts(self, newcomer: Sequence, throughput: ThroughputEstimate) -> Iterator[tuple[Sequence, float]]:
        """When everybody in the line, and the newcomer, will probably get a slot, in the order of service [monotonic s]."""
        ends = [throughput.now] * len(self._free)
        yields: list[float] = []
        interruptible = {id(row) for row in self._interruptible()}
        for row in self._running():
            remaining_s = max(1.0, self.queue.predict(row) - row.steps) * throughput.step_s
            if id(row) in interruptible:
                yields.append(remaining_s)
            ends.append(throughput.now + remaining_s)
        heapq.heapify(ends)
        for sequence in self.queue.order(newcomer):
            takes_s = throughput.prefill_s + max(1.0, self.queue.predict(sequence) - sequence.steps) * throughput.step_s
            soonest = ends[0]
            if sequence.lane is Lane.INTERACTIVE and soonest > throughput.now and yields:
                # It interrupts somebody, whose rest comes afterwards.
                rest_s = yields.pop()
                ends.remove(throughput.now + rest_s)
                heapq.heapify(ends)
                start = throughput.now + throughput.step_s
                heapq.heappush(ends, start + takes_s + rest_s)
            else:
                start = heapq.heapreplace(ends, soonest + takes_s)
            yield sequence, start

    def _has_room(self, sequence: Sequence, now: float) -> bool:
        """Whether a whole round, and those in flight, fit the reader's buffer; keeps the time since when they do not."""
        if sequence.pending_steps + (1 + self.rounds_ahead) * self._config.steps_per_round <= self._config.buffer_steps:
            sequence.paused_since = None
            return True
        if sequence.paused_since is None or sequence.pending_steps < sequence.pending_at_pause:
            sequence.paused_since = now
        sequence.pending_at_pause = sequence.pending_steps
        return False


def _slot(sequence: Sequence) -> int:
    assert sequence.slot is not None, "only placed sequences have a slot"
    return sequence.slot


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
