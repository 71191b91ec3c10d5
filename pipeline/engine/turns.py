"""Turns: the one rule of who gets a slot next, who gives it up for that, and which rows decode.

In:    the order of the waiting sequences, who is in the slots, the rows that leave every stream fast enough (pace.py)
Out:   the next Turn; the bulk rows that decode
Never: torch, clocks; the slot table itself: the scheduler changes it, and promises.py plays it forward

Sequences of the interactive and the standard lane have listeners; bulk has none. The rule:

- While anybody listens, no more rows decode than leave every stream fast enough. Listeners come first; bulk rows beyond
  that stay in their slots and out of the round, the most urgent of them last. Bulk alone decodes in all slots.
- A listener who finds no free slot gets that of the least urgent bulk sequence, whose state is kept on the host.
- Bulk is not starved: while a bulk sequence is older than a waiting listener by `bulk_patience_s` or more, one slot is
  bulk's, and one row where LEAST_SHARED rows are fast enough. Where fewer are, its row decodes while nobody waits and all
  listeners have audio to spare (scheduler.py).
"""

from bisect import insort
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.engine.sequence import Sequence
from pipeline.engine.waiting_queue import Order
from pipeline.types import Lane

BULK = Lane.BULK
LEAST_SHARED = 5
"""rows of which one is kept for overdue bulk: of fewer it would be too large a part of what listeners have"""


class Turn(NamedTuple):
    """The next sequence that gets a slot."""

    sequence: Sequence
    victim: Sequence | None = None
    """the bulk sequence that gives its slot up for it; None: a free one"""


@dataclass(slots=True)
class SlotCounts:
    """Who is in the slots, as far as the rule looks at it."""

    most_rows: int
    """rows that listeners may have"""
    fast_rows: int
    """rows within which bulk decodes while anybody listens; fewer where not even one listener is fast enough"""
    free: int
    may_preempt: int
    """sequences that may still be preempted"""
    listened: int = 0
    """rows that somebody listens to; one whose reader pauses slows nobody and does not count"""
    bulk: list[Sequence] = field(default_factory=list)
    """bulk sequences in slots, the most urgent first"""

    @property
    def are_full(self) -> bool:
        """True if no slot is free and none can be freed by preempting: nobody gets one, whoever waits."""
        return not self.free and not (self.bulk and self.may_preempt > 0)

    def add(self, sequence: Sequence) -> None:
        """Counts a sequence in a slot that was not free or has been taken."""
        if sequence.lane is BULK:
            insort(self.bulk, sequence, key=_rank)
        else:
            self.listened += sequence.paused_since is None

    def take(self, turn: Turn, *, restores: bool) -> None:
        """Carries a turn out.

        Args:
            restores: the sequence had been preempted.
        """
        if turn.victim is None:
            self.free -= 1
        else:
            self.bulk.remove(turn.victim)
            self.may_preempt -= 1
        self.may_preempt += restores
        self.add(turn.sequence)

    def leave(self, sequence: Sequence) -> None:
        """Counts a sequence out that has ended."""
        self.free += 1
        if sequence.lane is BULK:
            self.bulk.remove(sequence)
        else:
            self.listened -= sequence.paused_since is None


def next_turn(order: Order, slots: SlotCounts) -> Turn | None:
    """Returns who gets a slot next; None if nobody does before a row ends."""
    if slots.are_full:
        return None
    listener = order.listener
    if listener is None:
        bulk = order.bulk()
        return Turn(bulk) if bulk is not None and slots.free and _bulk_fits(slots, attended=slots.listened > 0) else None
    bulk = order.bulk(until=listener.rank)
    is_overdue = bulk is not None or (bool(slots.bulk) and slots.bulk[0].rank <= listener.rank)
    fits = slots.listened + 1 + (is_overdue and slots.most_rows >= LEAST_SHARED) <= slots.most_rows
    if bulk is not None and slots.free and not (fits and slots.bulk) and _bulk_fits(slots, attended=True):
        return Turn(bulk)
    if fits and slots.free:
        return Turn(listener)
    if fits and slots.may_preempt > 0 and len(slots.bulk) > is_overdue:
        return Turn(listener, victim=slots.bulk[-1])
    return None


def num_decoding(bulk: list[Sequence], listened: int, fast_rows: int) -> int:
    """Returns how many of the bulk rows decode beside so many that somebody listens to; the most urgent do."""
    return min(len(bulk), max(0, fast_rows - listened)) if listened else len(bulk)


def _bulk_fits(slots: SlotCounts, *, attended: bool) -> bool:
    return not attended or slots.listened + len(slots.bulk) < slots.fast_rows


def _rank(sequence: Sequence) -> float:
    return sequence.rank
