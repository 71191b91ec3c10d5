"""SlotTable: which sequence is in which slot, and which slots are free.

In:    sequences that get a slot or leave it
Out:   the lowest free slot; those that are in slots
Owns:  the table
Never: torch, clocks, the reasons

A slot whose owner has left while its last round is in flight cools: nobody gets it before that round is read, because its
numbers may say that the slot must be zeroed.
"""

import heapq

from pipeline.engine.sequence import Sequence, slot_of


class SlotTable:
    """The slots of one engine: the rows of its fixed batch."""

    def __init__(self, slots: int) -> None:
        self._owners: list[Sequence | None] = [None] * slots
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

    def running(self) -> list[Sequence]:
        """Returns those in slots, the lowest slot first."""
        return [sequence for sequence in self._owners if sequence is not None]

    def holds(self, sequence: Sequence) -> bool:
        """Returns True while the sequence is in its slot."""
        return sequence.slot is not None and self._owners[sequence.slot] is sequence

    def is_cooling(self, slot: int) -> bool:
        return slot in self._cooling

    def occupy(self, sequence: Sequence) -> None:
        """Gives the sequence the lowest free slot."""
        sequence.slot = heapq.heappop(self._free)
        self._owners[sequence.slot] = sequence

    def vacate(self, sequence: Sequence, *, cools: bool = False) -> int:
        """Takes the sequence's slot and returns it. It is free at once, or cools."""
        slot = slot_of(sequence)
        assert self._owners[slot] is sequence, "a slot is released by its owner only"
        self._owners[slot] = None
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
