"""Scheduler: decides which sequences run in the next round, which wait and which leave.

In:    sequences that were submitted or cancelled, their progress in the last round, the time `now` [monotonic s]
Out:   one Plan per round
Owns:  the waiting queue and the slot table
Never: torch, clocks of its own, audio

A sequence is in exactly one place: waiting, in one slot, or gone. Slots are assigned in the order of waiting_queue.py, with one
exception: prompts that share the first one's padded length may be prefilled together with it.

Where an interactive sequence finds no slot, preemption.py chooses a bulk one that gives its slot up. The slot's whole state,
keys and values included, is kept as it is and put back later: no bit of its steps is computed again, so none can differ.

An admitted sequence is promised its first audio: promises.py refuses a newcomer whose own would be late, or that would make
another one's late, before it costs a step. And those that are listened to stay smooth: no sequence gets a slot while one more
would make the others slower than they must be (pace.py). Bulk sequences among themselves have no such limit.
"""

import heapq
from dataclasses import dataclass

from pipeline.config import EngineConfig
from pipeline.engine.pace import Pace
from pipeline.engine.preemption import choose_preempted, num_preempted, preemptible
from pipeline.engine.promises import Occupancy, ThroughputEstimate, check_promises
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.engine.waiting_queue import WaitQueue
from pipeline.errors import AtCapacity, DeadlineExceeded, ReaderStalled, SynthesisError
from pipeline.types import Lane

PREFILL_BUCKET = 16
"""prompts are padded to a multiple of this [positions]"""
EXTENT_BUCKET = 64
"""a decode step looks at a multiple of this many positions"""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: what leaves, moves, is prefilled, and then decodes."""

    prefill: tuple[Sequence, ...]
    """sequences with a new slot, all of one bucket"""
    preempt: tuple[tuple[Sequence, int], ...]
    """preempted sequences, each with the slot it has left"""
    restore: tuple[Sequence, ...]
    """preempted sequences that have a slot again"""
    decode: tuple[Sequence, ...]
    extent_slots: int
    """every decoding slot is below this"""
    extent_positions: int
    """every position a decoding slot reads is below this"""
    left: tuple[tuple[Sequence, SynthesisError | None], ...]
    """sequences removed before this round, each with the error that ended it; None if it was cancelled"""

    @property
    def fills_slots(self) -> bool:
        """True if it changes what is in the slots: it must be carried out, although none may decode."""
        return bool(self.prefill or self.preempt or self.restore)


def prefill_bucket(length: int) -> int:
    """Returns the padded length of a prompt: a function of the prompt alone."""
    return _round_up(length, PREFILL_BUCKET)


class Scheduler:
    """The waiting queue and the slot table."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.queue = WaitQueue(config)
        self.pace = Pace(config.max_rtf, config.slots)
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

    @property
    def usable_slots(self) -> int:
        """Slots that may be taken while those that are listened to keep pace; at least one. Paused ones slow nobody."""
        running = self._running()
        if all(sequence.lane is Lane.BULK for sequence in running):
            return self._config.slots
        paused = sum(sequence.paused_since is not None for sequence in running)
        return min(self._config.slots, self.pace.most_rows + paused)

    def submit(
        self, sequence: Sequence, *, admitted: bool, retry_after_s: float, throughput: ThroughputEstimate | None = None
    ) -> None:
        """Queues a sequence.

        Args:
            admitted: its request was admitted before: it is queued whatever the load.
            retry_after_s: the hint in AtCapacity [s].
            throughput: None before the first round: no promise is checked yet.

        Raises:
            AtCapacity: as many sequences wait as may: the free slots plus `max_waiting`, for bulk plus half of it.
            DeadlineUnmeetable: there is room, but a promised first audio would be late.
        """
        if not admitted:
            self._check_room(sequence.lane, retry_after_s)
            if throughput is not None:
                check_promises(sequence, self.queue, self._occupancy(), throughput)
        self.queue.join(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Marks a sequence whose reader has gone: the next plan removes it."""
        sequence.cancelled = True

    def next_plan(self, now: float) -> Plan:
        """Removes the sequences that must leave, assigns slots, and chooses the sequences that decode."""
        self._plans += 1
        left = self._remove_ended(now)
        preempt = self._preempt()
        prefill, restore = self._assign_slots()
        decode = tuple(
            sequence for sequence in self._running() if self._has_room(sequence, now) and not sequence.preempt_pending
        )
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
            extent_slots=max((slot_of(sequence) for sequence in decode), default=-1) + 1,
            extent_positions=min(_round_up(reach, EXTENT_BUCKET), self._config.positions),
            left=left,
        )

    def holds(self, sequence: Sequence) -> bool:
        """Returns True while the sequence is in its slot."""
        return sequence.slot is not None and self._slots[sequence.slot] is sequence

    def release(self, sequence: Sequence) -> None:
        """Frees the sequence's slot."""
        slot = slot_of(sequence)
        assert self._slots[slot] is sequence, "a slot is released by its owner only"
        self._slots[slot] = None
        heapq.heappush(self._free, slot)

    def next_deadline(self) -> float | None:
        """Returns when a sequence must be removed if nothing else happens [monotonic s]; None if none is left."""
        times = [sequence.deadline for sequence in self._all()]
        times += [
            sequence.paused_since + self._config.stall_timeout_s
            for sequence in self._running()
            if sequence.paused_since is not None
        ]
        return min(times, default=None)

    def drain(self) -> list[Sequence]:
        """Removes and returns all sequences."""
        sequences = self._all()
        self.queue.clear()
        for sequence in self._running():
            self.release(sequence)
        return sequences

    def check(self) -> None:
        """Asserts the invariants, for tests and for idle moments."""
        running = self._running()
        assert len(running) + len(self._free) == self._config.slots, "free and used slots make all slots"
        assert len(set(self._free)) == len(self._free), "a slot is free once"
        assert all(self._slots[slot] is None for slot in self._free), "a free slot has no owner"
        assert all(sequence.slot == slot for slot, sequence in enumerate(self._slots) if sequence is not None)
        assert all(sequence.slot is None for sequence in self.queue), "a waiting sequence has no slot"
        assert num_preempted(self.queue) <= self._config.max_preempted, "no more are preempted than may be"
        assert all(sequence.length <= self._config.positions for sequence in running), "no sequence outgrows its slot"

    def _all(self) -> list[Sequence]:
        return [*self.queue, *self._running()]

    def _running(self) -> list[Sequence]:
        return [sequence for sequence in self._slots if sequence is not None]

    def _occupancy(self) -> Occupancy:
        running = self._running()
        may_yield = preemptible(self.queue, running, max_preempted=self._config.max_preempted)
        return Occupancy(self.usable_slots, tuple(running), tuple(may_yield))

    def _check_room(self, lane: Lane, retry_after_s: float) -> None:
        """Checks that one more sequence of this lane may wait; bulk leaves half of the waiting room to the others.

        Raises:
            AtCapacity: it may not.
        """
        room = len(self._free) + self._config.max_waiting - len(self.queue)
        bulk_room = len(self._free) + -(-self._config.max_waiting // 2) - self.queue.count(Lane.BULK)
        if room <= 0 or (lane is Lane.BULK and bulk_room <= 0):
            raise AtCapacity(
                f"all {self._config.slots} slots are taken and {len(self.queue)} segments wait; the limit is "
                f"{self._config.max_waiting} (engine.max_waiting), half of it for bulk; try again in {retry_after_s:.1f} s",
                retry_after_s=retry_after_s,
            )

    def _remove_ended(self, now: float) -> tuple[tuple[Sequence, SynthesisError | None], ...]:
        """Removes the cancelled, late and stalled sequences; returns each with its error."""
        left = [(sequence, self._why_ended(sequence, now)) for sequence in self._all() if self._has_ended(sequence, now)]
        gone = {id(sequence) for sequence, _ in left}
        if gone:
            self.queue.leave(gone)
        for sequence, _ in left:
            if sequence.slot is not None:
                self.release(sequence)
        return tuple(left)

    def _has_ended(self, sequence: Sequence, now: float) -> bool:
        return sequence.cancelled or now >= sequence.deadline or self._is_stalled(sequence, now)

    def _why_ended(self, sequence: Sequence, now: float) -> SynthesisError | None:
        if sequence.cancelled:
            return None
        if self._is_stalled(sequence, now):
            return ReaderStalled(
                f"nothing was read for {self._config.stall_timeout_s:g} s (engine.stall_timeout_s) "
                f"while {sequence.pending_steps} steps were ready"
            )
        return DeadlineExceeded(
            f"the segment was not finished in its {sequence.deadline - sequence.submitted_at:.1f} s; "
            f"{sequence.steps} of at most {sequence.max_steps} steps were generated"
        )

    def _is_stalled(self, sequence: Sequence, now: float) -> bool:
        return sequence.paused_since is not None and now - sequence.paused_since >= self._config.stall_timeout_s

    def _preempt(self) -> tuple[tuple[Sequence, int], ...]:
        """Takes the slots of the chosen bulk sequences and queues them again; returns each with the slot it has left.

        A sequence whose last round is still in flight decodes no more, and is preempted by a later plan.
        """
        running, preempted = self._running(), []
        for sequence in running:
            sequence.preempt_pending = False
        free_slots = max(0, self.usable_slots - len(running))
        for sequence in choose_preempted(self.queue, running, free_slots=free_slots, max_preempted=self._config.max_preempted):
            if self._plans - sequence.last_planned <= self.rounds_ahead:
                sequence.preempt_pending = True
                continue
            preempted.append((sequence, slot_of(sequence)))
            self.release(sequence)
            sequence.slot = None
            sequence.preempted_state = True  # the engine's loop puts the runner's copy of the slot in its place
            sequence.paused_since = None
            self.queue.rejoin(sequence)
        return tuple(preempted)

    def _assign_slots(self) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Assigns free slots. Returns (sequences to prefill, sequences to restore).

        There is at most one prefill call per round: a second one would delay every running stream audibly.
        """
        placed: list[Sequence] = []
        prefill: list[Sequence] = []
        if not self._free or not self.queue:
            return (), ()
        for sequence in self.queue.order():
            if self.num_running >= self.usable_slots or len(placed) == self._config.prefill_rows:
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

    def _has_room(self, sequence: Sequence, now: float) -> bool:
        """Returns True if the reader's buffer has room for a whole round and those in flight; else records since when not."""
        if sequence.pending_steps + (1 + self.rounds_ahead) * self._config.steps_per_round <= self._config.buffer_steps:
            sequence.paused_since = None
            return True
        if sequence.paused_since is None or sequence.pending_steps < sequence.pending_at_pause:
            sequence.paused_since = now
        sequence.pending_at_pause = sequence.pending_steps
        return False


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
