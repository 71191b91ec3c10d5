"""Door: how many requests one ingress replica holds, and when a refused one should come back.

In:    requests that arrive and leave
Out:   AtCapacity with a computed retry_after_s, Draining once it is closed, or a place
Owns:  the count of requests inside, a moving average of how long they stay
Never: bodies, queues: who finds no place is told at once
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.errors import AtCapacity, Draining
from pipeline.ewma import Ewma

EWMA_WEIGHT = 0.2  # of the newest stay in the mean one
FIRST_STAY_S = 2.0  # until the first request has left: about one sentence
LONGEST_WAIT_S = 60.0


class Door:
    """Counts who is inside."""

    def __init__(self, places: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.places = places
        self.inside = 0
        self.closed = False
        self._stay_s = Ewma(EWMA_WEIGHT, FIRST_STAY_S)
        self._turned_away = 0  # since somebody last left
        self._clock = clock

    @property
    def stay_s(self) -> float:
        """How long a request stays, on average [s]."""
        return self._stay_s.value

    @property
    def is_full(self) -> bool:
        """Whether check() would raise."""
        return self.closed or self.inside >= self.places

    def check(self) -> None:
        """Whether there is a place now, without taking it.

        Raises:
            AtCapacity: every place is taken. Draining: the door was closed.
        """
        if self.closed:
            raise Draining("this replica is about to stop and takes nothing new; try again, another one may answer")
        if self.inside >= self.places:
            self._turned_away += 1
            raise AtCapacity(f"all {self.places} places are taken (limits.max_in_flight)", retry_after_s=self.retry_after_s())

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Take a place for as long as the block runs.

        Raises:
            AtCapacity, Draining: as check().
        """
        self.check()
        self.inside += 1
        entered = self._clock()
        try:
            yield
        finally:
            self.inside -= 1
            self._turned_away = 0
            self._stay_s.add(self._clock() - entered)

    def close(self) -> int:
        """Let nobody in any more; who is inside stays to the end.

        Returns:
            how many still are.
        """
        self.closed = True
        return self.inside

    def retry_after_s(self) -> float:
        """A place frees every stay/places seconds; whoever was turned away before comes first."""
        return min(LONGEST_WAIT_S, self.stay_s / self.places * max(1, self._turned_away))
