"""Promises: predicts when sequences get a slot, and refuses a newcomer that would break a promised first audio.

In:    a newcomer, the waiting queue, the slots' occupancy, how fast the engine works at present
Out:   DeadlineUnmeetable, or nothing
Owns:  nothing
Never: torch, clocks, the slot table

The prediction plays the queue forward: each running sequence frees its slot after the steps that it will probably still make,
and the queue is served in its order.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.engine.sequence import Sequence
from pipeline.engine.waiting_queue import WaitQueue
from pipeline.errors import DeadlineUnmeetable
from pipeline.types import Lane


@dataclass(frozen=True, slots=True)
class ThroughputEstimate:
    """How fast the engine works at present."""

    now: float
    """when it was estimated [monotonic s]"""
    step_s: float
    """duration of one step of all slots [s]"""
    prefill_s: float = 0.0
    """duration of one prefill call [s]"""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The slots at present."""

    usable: int
    """the most that may be taken"""
    running: tuple[Sequence, ...]
    preemptible: tuple[Sequence, ...]
    """those of `running` that an interactive sequence may preempt"""


def check_promises(newcomer: Sequence, queue: WaitQueue, slots: Occupancy, throughput: ThroughputEstimate) -> None:
    """Checks that the newcomer, and each sequence behind it in the queue, would get its first audio in time.

    An idle engine takes every newcomer: no other replica could serve it sooner, and the estimate may be out of date.

    Raises:
        DeadlineUnmeetable: one of them would be late.
    """
    if newcomer.promised_at is None and all(sequence.promised_at is None for sequence in queue):
        return
    if not queue and not slots.running:
        return
    is_behind = False
    for sequence, start in predicted_starts(newcomer, queue, slots, throughput):
        is_behind = is_behind or sequence is newcomer
        if not is_behind or sequence.promised_at is None or sequence.preempted_state is not None:
            continue
        steps = min(float(sequence.prompt.scheduling.first_steps), queue.predict(sequence))
        late_s = start + throughput.prefill_s + steps * throughput.step_s - sequence.promised_at
        if late_s > 0:
            late = "its first audio" if sequence is newcomer else "the first audio of a request already admitted"
            raise DeadlineUnmeetable(
                f"{late} would be {late_s:.1f} s later than promised (deadline_ms, or the lane's deadline); "
                f"try again in {late_s:.1f} s, or in a lane with a later one",
                retry_after_s=max(late_s, 0.1),
            )


def predicted_starts(
    newcomer: Sequence, queue: WaitQueue, slots: Occupancy, throughput: ThroughputEstimate
) -> Iterator[tuple[Sequence, float]]:
    """Yields each waiting sequence and the newcomer, in the order of service, with the time it will probably get a slot.

    Times are monotonic seconds. An interactive sequence that finds no free slot preempts a bulk one that would still be
    running then; the remaining steps of that one follow its own.
    """
    now = throughput.now

    def remaining_s(sequence: Sequence) -> float:
        return max(1.0, queue.predict(sequence) - sequence.steps) * throughput.step_s

    ends = sorted(now + remaining_s(row) for row in slots.running)
    # Where more run than may, the first ones that end leave no slot.
    ends = [now] * (slots.usable - len(ends)) + ends[max(0, len(ends) - slots.usable) :]
    preemptible = {id(row) for row in slots.preemptible}
    preemptible_ends = [end for row in slots.running if id(row) in preemptible and (end := now + remaining_s(row)) in ends]
    for sequence in queue.order(newcomer):
        takes_s = throughput.prefill_s + remaining_s(sequence)
        soonest = ends[0]
        if sequence.lane is Lane.INTERACTIVE and soonest > now and preemptible_ends:
            end = preemptible_ends.pop()
            ends.remove(end)
            heapq.heapify(ends)
            start = now + throughput.step_s
            heapq.heappush(ends, start + takes_s + (end - now))
        else:
            start = heapq.heapreplace(ends, soonest + takes_s)
            if start in preemptible_ends:  # it has ended by then, and its slot is another's
                preemptible_ends.remove(start)
        yield sequence, start
