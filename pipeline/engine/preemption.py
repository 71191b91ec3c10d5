"""Preemption: chooses the bulk sequences that give up their slots to waiting interactive ones.

In:    the waiting queue, the running sequences, how many slots are free, how many sequences may be preempted at once
Out:   the sequences to preempt
Owns:  nothing
Never: torch, clocks, the slot table: the scheduler takes the slots
"""

from collections.abc import Iterable

from pipeline.engine.sequence import Sequence
from pipeline.engine.waiting_queue import WaitQueue
from pipeline.types import Lane


def choose_preempted(
    queue: WaitQueue, running: Iterable[Sequence], *, free_slots: int, max_preempted: int
) -> tuple[Sequence, ...]:
    """Returns the running bulk sequences to preempt, one for each waiting interactive sequence that finds no free slot.

    The least urgent bulk sequence goes first. A bulk sequence that has waited longer than the lane's patience is more urgent
    than the interactive one, and keeps its slot.
    """
    if not max_preempted:
        return ()
    urgent = sorted((sequence for sequence in queue if sequence.lane is Lane.INTERACTIVE), key=queue.priority_key)
    chosen: list[Sequence] = []
    for waiting, candidate in zip(urgent[free_slots:], preemptible(queue, running, max_preempted=max_preempted), strict=False):
        if queue.priority_key(candidate) <= queue.priority_key(waiting):
            break
        chosen.append(candidate)
    return tuple(chosen)


def preemptible(queue: WaitQueue, running: Iterable[Sequence], *, max_preempted: int) -> list[Sequence]:
    """Returns the running bulk sequences that may be preempted now, the least urgent first.

    A sequence can be preempted only after it has emitted the steps of its first audio.
    """
    candidates = [row for row in running if row.lane is Lane.BULK and row.steps >= row.prompt.scheduling.first_steps]
    candidates.sort(key=queue.priority_key, reverse=True)
    return candidates[: max(0, max_preempted - num_preempted(queue))]


def num_preempted(queue: WaitQueue) -> int:
    """Returns how many sequences in the queue have been preempted and wait to be restored."""
    return sum(sequence.preempted_state is not None for sequence in queue)
