"""Scheduler: decides who runs in the next round, who waits, who leaves.

In:    sequences that were submitted or cancelled, what the last round made of them, the time `now` [monotonic s]
Out:   one Plan a round
Owns:  the waiting queue and the slot table
Never: torch, clocks of its own, audio

A sequence is in exactly one place: waiting, in one slot, or gone. First come, first served, with one exception:
prompts that share the first one's padded length may be prefilled together with it.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from pipeline.config import EngineConfig
from pipeline.engine.sequence import Sequence
from pipeline.errors import AtCapacity, DeadlineExceeded, ReaderStalled, SynthesisError

PREFILL_BUCKET = 16
"""prompts are padded to a multiple of this [positions]"""
EXTENT_BUCKET = 64
"""a decode step looks at a multiple of this many positions"""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: who is prefilled, who decodes afterwards, who has left before it."""

    prefill: tuple[Sequence, ...]
    """newly placed, all of one bucket"""
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
        self._waiting: deque[Sequence] = deque()
        self._slots: list[Sequence | None] = [None] * config.slots
        # The lowest free slot first keeps the used ones together, so that a step can leave out the rest.
        self._free = list(range(config.slots))
        self.rounds_ahead = 0
        """rounds that were launched and not yet read when a plan is made"""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return self._config.slots - len(self._free)

    def submit(self, sequence: Sequence, *, admitted: bool, retry_after_s: float) -> None:
        """Queue a sequence.

        Raises:
            AtCapacity: nobody is admitted beyond the free slots plus `max_waiting`, unless `admitted` already.
        """
        room = len(self._free) + self._config.max_waiting - len(self._waiting)
        if room <= 0 and not admitted:
            raise AtCapacity(
                f"all {self._config.slots} slots are taken and {len(self._waiting)} requests wait; the limit is "
                f"{self._config.max_waiting} (engine.max_waiting); try again in {retry_after_s:.1f} s",
                retry_after_s=retry_after_s,
            )
        self._waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """The reader has gone: the next plan no longer knows the sequence."""
        sequence.cancelled = True

    def next_plan(self, now: float) -> Plan:
        """Take out who must leave, place who can be placed, choose who decodes."""
        left = self._take_out(now)
        prefill = self._place()
        decode = tuple(sequence for sequence in self._running() if self._has_room(sequence, now))
        # Steps of this round are at positions length .. length + steps_per_round - 1, behind those of rounds in flight.
        reach = max((sequence.length for sequence in decode), default=0)
        reach += (1 + self.rounds_ahead) * self._config.steps_per_round
        return Plan(
            prefill=prefill,
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
        self._waiting.clear()
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
        assert all(sequence.slot is None for sequence in self._waiting), "who waits has no slot"
        assert all(sequence.length <= self._config.positions for sequence in running), "no sequence outgrows its slot"

    def _everybody(self) -> list[Sequence]:
        return [*self._waiting, *self._running()]

    def _running(self) -> list[Sequence]:
        return [sequence for sequence in self._slots if sequence is not None]

    def _take_out(self, now: float) -> tuple[tuple[Sequence, SynthesisError | None], ...]:
        left = [(sequence, self._why_leave(sequence, now)) for sequence in self._everybody() if self._must_leave(sequence, now)]
        gone = {id(sequence) for sequence, _ in left}
        if gone:
            self._waiting = deque(sequence for sequence in self._waiting if id(sequence) not in gone)
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

    def _place(self) -> tuple[Sequence, ...]:
        """One prefill call a round: a second one would be heard as a gap in every running stream."""
        placed: list[Sequence] = []
        passed: list[Sequence] = []
        while self._waiting and self._free and len(placed) < self._config.prefill_rows:
            sequence = self._waiting.popleft()
            if placed and prefill_bucket(len(sequence.prompt.ids)) != prefill_bucket(len(placed[0].prompt.ids)):
                passed.append(sequence)
                continue
            sequence.slot = heapq.heappop(self._free)
            self._slots[sequence.slot] = sequence
            placed.append(sequence)
        self._waiting.extendleft(reversed(passed))
        return tuple(placed)

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
