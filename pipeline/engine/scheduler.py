"""Scheduler: decides which sequences run in the next round, which wait and which leave.

In:    sequences that were submitted or cancelled, their progress in the last round, the time `now` [monotonic s]
Out:   one Plan per round
Owns:  the waiting queue and the slot table
Never: torch, clocks of its own, audio

A sequence is in exactly one place: waiting, in one slot, or gone. turns.py says who gets a slot next, who gives one up for it
and which bulk rows decode. Prompts that share the first one's padded length may be prefilled together with it, where that
takes no slot from one before them.

A preempted sequence's slot, keys and values included, is kept as it is and put back later: no bit of its steps is computed
again, so none can differ. A row that is left out of a round keeps its slot, and nothing is copied.

An admitted sequence is promised its first audio: promises.py plays the same turns forward, and refuses a newcomer whose own
would be late, or that would make another one's late, before it costs a step.
"""

import heapq
from dataclasses import dataclass

from pipeline.config import EngineConfig
from pipeline.engine.pace import Pace
from pipeline.engine.promises import Playback, ThroughputEstimate, are_surely_kept, check_promises
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.engine.turns import SlotCounts, next_turn, num_decoding
from pipeline.engine.waiting_queue import WaitQueue
from pipeline.errors import AtCapacity, DeadlineExceeded, ReaderStalled, SynthesisError
from pipeline.spec import STEPS_PER_SECOND
from pipeline.types import Lane, LoadReport

PREFILL_BUCKET = 16
"""prompts are padded to a multiple of this [positions]"""
EXTENT_BUCKET = 64
"""a decode step looks at a multiple of this many positions"""
SPARE_S = 3.0
"""audio that each listener has ahead while a bulk row decodes beside them although rounds are too slow for it [s]"""


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
    removed: tuple[tuple[Sequence, SynthesisError | None], ...]
    """sequences removed before this round, each with the error that ended it; None if it was cancelled"""

    @property
    def fills_slots(self) -> bool:
        """True if it changes what is in the slots: it must be carried out, although none may decode."""
        return bool(self.prefill or self.preempt or self.restore)


def prefill_bucket(length: int) -> int:
    """Returns the padded length of a prompt: a function of the prompt alone."""
    return _round_up(length, PREFILL_BUCKET)


class SlotTable:
    """The slots of one engine: the rows of its fixed batch.

    A slot whose owner has left while its last round is in flight cools: nobody gets it before that round is read, because its
    numbers may say that the slot must be zeroed.
    """

    def __init__(self, slots: int) -> None:
        self._owners: list[Sequence | None] = [None] * slots
        self._running: tuple[Sequence, ...] | None = ()  # the owners; None: they have changed
        self._bulk: list[Sequence] = []  # those of bulk among `_running`
        # The lowest free slot first keeps the used ones together, so that a step can leave out the rest.
        self._free = list(range(slots))
        self._cooling: dict[int, int] = {}  # slots, each with the number of the last plan it was in

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cooling(self) -> int:
        return len(self._cooling)

    @property
    def num_running(self) -> int:
        return len(self._owners) - len(self._free) - len(self._cooling)

    def running(self) -> tuple[Sequence, ...]:
        """Returns those in slots, the lowest slot first."""
        if self._running is None:
            self._running = tuple([sequence for sequence in self._owners if sequence is not None])
            bulk = [sequence for sequence in self._running if sequence.prompt.scheduling.lane is Lane.BULK]
            self._bulk = sorted(bulk, key=lambda sequence: sequence.rank)
        return self._running

    def bulk(self) -> list[Sequence]:
        """Returns those of bulk among them, the most urgent first."""
        self.running()
        return self._bulk

    def holds(self, sequence: Sequence) -> bool:
        """Returns True while the sequence is in its slot."""
        return sequence.slot is not None and self._owners[sequence.slot] is sequence

    def is_cooling(self, slot: int) -> bool:
        return slot in self._cooling

    def occupy(self, sequence: Sequence) -> None:
        """Gives the sequence the lowest free slot."""
        sequence.slot = heapq.heappop(self._free)
        self._owners[sequence.slot] = sequence
        self._running = None

    def vacate(self, sequence: Sequence, *, cools: bool = False) -> int:
        """Takes the sequence's slot and returns it. It is free at once, or cools."""
        slot = slot_of(sequence)
        assert self._owners[slot] is sequence, "a slot is released by its owner only"
        self._owners[slot] = None
        self._running = None
        if cools:
            self._cooling[slot] = sequence.last_planned
        else:
            heapq.heappush(self._free, slot)
        return slot

    def free_cooled(self, last_read: int) -> None:
        """Frees the slots whose last round has been read: that of plan `last_read`, or one before it."""
        for slot, last_planned in list(self._cooling.items()):
            if last_planned <= last_read:
                del self._cooling[slot]
                heapq.heappush(self._free, slot)

    def check(self) -> None:
        """Asserts the invariants."""
        empty = [*self._free, *self._cooling]
        assert len(self.running()) + len(empty) == len(self._owners), "free and used slots make all slots"
        assert len(set(empty)) == len(empty), "a slot is free once"
        assert all(self._owners[slot] is None for slot in empty), "a free slot has no owner"
        assert all(sequence.slot == slot for slot, sequence in enumerate(self._owners) if sequence is not None)


class Scheduler:
    """The waiting queue and the slot table."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.queue = WaitQueue(config)
        self.pace = Pace(config.max_rtf, config.slots)
        self._plans = 0
        self._report: LoadReport | None = None
        self._reported = (0, 0, 0)  # rounds, running and waiting sequences, when it was made
        self._slots = SlotTable(config.slots)
        self.rounds_ahead = 0
        """rounds that were launched and not yet read when a plan is made"""

    @property
    def num_waiting(self) -> int:
        return len(self.queue)

    @property
    def num_running(self) -> int:
        return self._slots.num_running

    @property
    def usable_slots(self) -> int:
        """Slots whose rows may decode while those that are listened to keep pace; at least one. Paused ones slow nobody."""
        running = self._running()
        if all(sequence.lane is Lane.BULK for sequence in running):
            return self._config.slots
        paused = len([sequence for sequence in running if sequence.paused_since is not None])
        return min(self._config.slots, self.pace.most_rows + paused)

    def load_report(self) -> LoadReport:
        """Returns the work before the engine, as of the latest round and of who has come since. Its owner says who listened."""
        state = self.pace.rounds, self.num_running, self.num_waiting
        if self._report is None or state != self._reported:
            self._report, self._reported = self._new_report(), state
        return self._report

    def _new_report(self) -> LoadReport:
        running, waiting = self._running(), list(self.queue)
        in_slots, behind = self.queue.predicted(running), self.queue.predicted(waiting)
        steps = dict.fromkeys(Lane, 0.0)
        for sequence, predicted in zip(waiting, behind, strict=True):
            steps[sequence.lane] += predicted - sequence.steps
        remaining = sum([predicted - sequence.steps for sequence, predicted in zip(running, in_slots, strict=True)])
        known = len(running) + len(waiting)
        fixed_s, row_s = self.pace.line()
        return LoadReport(
            usable=self.usable_slots,
            running=len(running),
            waiting=len(waiting),
            waiting_steps=(steps[Lane.INTERACTIVE], steps[Lane.STANDARD], steps[Lane.BULK]),
            remaining_steps=remaining,
            mean_steps=sum(in_slots + behind) / known if known else self.queue.usual_steps,
            fixed_s=fixed_s,
            row_s=row_s,
            listened_steps=0,
            listened_s=0.0,
        )

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
                self._check_promises(sequence, throughput)
        self.queue.join(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Marks a sequence whose reader has gone: the next plan removes it."""
        sequence.cancelled = True

    def next_plan(self, now: float) -> Plan:
        """Removes the sequences that must leave, assigns slots, and chooses the sequences that decode."""
        self._plans += 1
        self._slots.free_cooled(self._plans - self.rounds_ahead - 1)
        could = self._with_room(self._running(), now)
        removed = self._remove_ended(now)
        prefill, preempt, restore = self._assign_slots()
        could |= self._with_room((*prefill, *restore), now)
        decode = self._choose_rows(could, now)
        for sequence in decode:
            sequence.last_planned = self._plans
        # Steps of this round are at positions length .. length + steps_per_round - 1, behind those of rounds in flight.
        reach = max([len(sequence.prompt.ids) + sequence.steps for sequence in decode], default=0)
        reach += (1 + self.rounds_ahead) * self._config.steps_per_round
        return Plan(
            prefill=prefill,
            preempt=preempt,
            restore=restore,
            decode=decode,
            extent_slots=slot_of(decode[-1]) + 1 if decode else 0,
            extent_positions=min(_round_up(reach, EXTENT_BUCKET), self._config.positions),
            removed=removed,
        )

    def holds(self, sequence: Sequence) -> bool:
        """Returns True while the sequence is in its slot."""
        return self._slots.holds(sequence)

    def release(self, sequence: Sequence) -> None:
        """Frees the slot of a sequence that has ended; its tenant pays for the steps that were made."""
        self._slots.vacate(sequence)
        self.queue.settle(sequence)

    def is_cooling(self, slot: int) -> bool:
        """Returns True for a slot whose owner left while its last round was in flight: nobody gets it before that is read."""
        return self._slots.is_cooling(slot)

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
        self._slots.check()
        assert all(sequence.slot is None for sequence in self.queue), "a waiting sequence has no slot"
        assert self._num_preempted() <= self._config.max_preempted, "no more are preempted than may be"
        assert all(sequence.length <= self._config.positions for sequence in running), "no sequence outgrows its slot"

    def _all(self) -> list[Sequence]:
        return [*self.queue, *self._running()]

    def _running(self) -> tuple[Sequence, ...]:
        return self._slots.running()

    def _num_preempted(self) -> int:
        return sum(sequence.preempted_state is not None for sequence in self.queue)

    def _counts(self) -> SlotCounts:
        running, bulk = self._running(), self._slots.bulk().copy()
        paused = len([sequence for sequence in running if sequence.paused_since is not None and sequence.lane is not Lane.BULK])
        return SlotCounts(
            most_rows=self.pace.most_rows,
            fast_rows=self.pace.fast_rows,
            free=self._slots.num_free,
            may_preempt=self._config.max_preempted - self._num_preempted(),
            listened=len(running) - len(bulk) - paused,
            bulk=bulk,
        )

    def _check_promises(self, newcomer: Sequence, throughput: ThroughputEstimate) -> None:
        """Checks that the newcomer breaks no promise, his own included.

        An idle engine takes every newcomer: no other replica could serve it sooner, and the estimate may be out of date.

        Raises:
            DeadlineUnmeetable: he does.
        """
        running = self._running()
        if not (self.queue or running):
            return

        def counts() -> SlotCounts:
            slots = self._counts()
            slots.free += self._slots.num_cooling
            slots.most_rows = self.pace.sure_rows  # it may change before the promise is due
            slots.fast_rows = min(slots.fast_rows, slots.most_rows)
            return slots

        others = (*running, *self.queue)
        if are_surely_kept((newcomer, *others), len(self.queue), counts(), throughput, pace=self.pace, config=self._config):
            return

        def play(other: Sequence | None) -> Playback:
            return Playback(
                self._config,
                self.queue,
                running,
                counts(),
                throughput,
                pace=self.pace,
                rounds_ahead=self.rounds_ahead,
                newcomer=other,
            )

        check_promises(newcomer, play, worth_s=throughput.prefill_s + throughput.step_s * self._config.steps_per_round)

    def _check_room(self, lane: Lane, retry_after_s: float) -> None:
        """Checks that one more sequence of this lane may wait; bulk leaves half of the waiting room to the others.

        Raises:
            AtCapacity: it may not.
        """
        room = self._slots.num_free + self._config.max_waiting - len(self.queue)
        bulk_room = self._slots.num_free + -(-self._config.max_waiting // 2) - self.queue.count(Lane.BULK)
        if room <= 0 or (lane is Lane.BULK and bulk_room <= 0):
            raise AtCapacity(
                f"all {self._config.slots} slots are taken and {len(self.queue)} segments wait; the limit is "
                f"{self._config.max_waiting} (engine.max_waiting), half of it for bulk; try again in {retry_after_s:.1f} s",
                retry_after_s=retry_after_s,
            )

    def _remove_ended(self, now: float) -> tuple[tuple[Sequence, SynthesisError | None], ...]:
        """Removes the cancelled, late and stalled sequences; returns each with its error."""
        ended = [sequence for sequence in self._all() if self._has_ended(sequence, now)]
        removed = [(sequence, self._why_ended(sequence, now)) for sequence in ended]
        gone = {id(sequence) for sequence, _ in removed}
        if gone:
            self.queue.leave(gone)
        for sequence, _ in removed:
            if sequence.slot is not None:
                self._slots.vacate(sequence, cools=self._is_in_flight(sequence))
                self.queue.settle(sequence)
        return tuple(removed)

    def _has_ended(self, sequence: Sequence, now: float) -> bool:
        return sequence.cancelled or now >= sequence.deadline or self._is_stalled(sequence, now)

    def _why_ended(self, sequence: Sequence, now: float) -> SynthesisError | None:
        if sequence.cancelled:
            return None
        if self._is_stalled(sequence, now):
            return ReaderStalled(
                f"nothing was read for {self._config.stall_timeout_s:g} s while {sequence.pending_steps} steps were ready"
            )
        return DeadlineExceeded(
            f"the segment was not finished in its {sequence.deadline - sequence.submitted_at:.1f} s; "
            f"{sequence.steps} of at most {sequence.max_steps} steps were generated"
        )

    def _is_stalled(self, sequence: Sequence, now: float) -> bool:
        return sequence.paused_since is not None and now - sequence.paused_since >= self._config.stall_timeout_s

    def _is_in_flight(self, sequence: Sequence) -> bool:
        return 0 < sequence.last_planned >= self._plans - self.rounds_ahead

    def _assign_slots(self) -> tuple[tuple[Sequence, ...], tuple[tuple[Sequence, int], ...], tuple[Sequence, ...]]:
        """Gives slots, turn by turn. Returns (sequences to prefill, preempted ones with the slots they have left, to restore).

        There is at most one prefill call per round: a second one would delay every running stream audibly.
        """
        placed: list[Sequence] = []
        prefill: list[Sequence] = []
        preempted: list[tuple[Sequence, int]] = []
        for sequence in self._running():
            sequence.preempt_pending = False
        if not self.queue:
            return (), (), ()
        counts = self._counts()
        if counts.are_full:
            return (), (), ()
        order = self.queue.order()
        while len(placed) < self._config.prefill_rows and (turn := next_turn(order, counts)) is not None:
            sequence, is_restored = turn.sequence, turn.sequence.preempted_state is not None
            is_of_another_length = bool(prefill) and not is_restored and _bucket_of(sequence) != _bucket_of(prefill[0])
            if turn.victim is not None:
                if is_of_another_length or turn.victim in placed or not self._may_preempt(turn.victim):
                    break
                preempted.append((turn.victim, self._preempt(turn.victim)))
                order.push(turn.victim)
            order.pop(sequence)
            counts.take(turn, restores=is_restored)
            if is_of_another_length:
                continue  # its slot is kept free for the next round
            self._slots.occupy(sequence)
            placed.append(sequence)
            if not is_restored:
                prefill.append(sequence)
        self.queue.serve({id(sequence) for sequence in placed})
        return tuple(prefill), tuple(preempted), tuple(sequence for sequence in placed if sequence.preempted_state is not None)

    def _may_preempt(self, victim: Sequence) -> bool:
        """Returns True if no round of the victim is in flight; else it decodes no more, and a later plan preempts it."""
        victim.preempt_pending = self._is_in_flight(victim)
        return not victim.preempt_pending

    def _preempt(self, victim: Sequence) -> int:
        """Takes the victim's slot and queues it again; returns the slot."""
        slot = self._slots.vacate(victim)
        victim.slot = None
        victim.preempted_state = True  # the engine's loop puts the runner's copy of the slot in its place
        victim.paused_since = None
        self.queue.rejoin(victim)
        return slot

    def _choose_rows(self, could: set[Sequence], now: float) -> tuple[Sequence, ...]:
        """Returns those of the rows that could decode which do."""
        rows = tuple([row for row in self._running() if row in could and not row.preempt_pending])
        bulk = [row for row in self._slots.bulk() if row in could and not row.preempt_pending]
        if not bulk:
            return rows
        number = num_decoding(bulk, len(rows) - len(bulk), self.pace.fast_rows)
        if not number and bulk[0].rank <= now and self._have_audio_to_spare(now):
            number = 1
        waiting = set(bulk[number:])
        return tuple([row for row in rows if row not in waiting])

    def _have_audio_to_spare(self, now: float) -> bool:
        """Returns True if no listener waits and each has SPARE_S more than was played since the first block."""
        if any(sequence.lane is not Lane.BULK for sequence in self.queue):
            return False
        return all(
            sequence.first_block_at is not None and sequence.steps / STEPS_PER_SECOND >= now - sequence.first_block_at + SPARE_S
            for sequence in self._running()
            if sequence.lane is not Lane.BULK and sequence.paused_since is None
        )

    def _with_room(self, sequences: tuple[Sequence, ...], now: float) -> set[Sequence]:
        """Returns those whose readers' buffers have room for a round and those in flight; of others, since when not."""
        most = self._config.buffer_steps - (1 + self.rounds_ahead) * self._config.steps_per_round
        could = set()
        for sequence in sequences:
            if (pending := sequence.pending_steps) <= most:
                sequence.paused_since = None
                could.add(sequence)
                continue
            if sequence.paused_since is None or pending < sequence.pending_at_pause:
                sequence.paused_since = now
            sequence.pending_at_pause = pending
        return could


def _bucket_of(sequence: Sequence) -> int:
    return prefill_bucket(len(sequence.prompt.ids))


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
