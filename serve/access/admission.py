"""Admission: how many requests one ingress replica works on, and when a refused client should try again.

In:    requests that begin and end
Out:   admission; AtCapacity with a computed retry_after_s, Draining once it is closed
Owns:  the count of requests in flight, a moving average of how long they take
Never: bodies, queues: a full replica refuses at once
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.errors import AtCapacity, Draining
from pipeline.ewma import Ewma

EWMA_WEIGHT = 0.2  # of the newest duration in the mean
FIRST_DURATION_S = 2.0  # until the first request has ended: about one sentence
LONGEST_WAIT_S = 60.0


class AdmissionLimiter:
    """Admits up to `capacity` requests at a time."""

    def __init__(self, capacity: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.capacity = capacity
        self.in_flight = 0
        self.admitted = 0
        """since the start"""
        self.closed = False
        self.when_full: Callable[[], object] = lambda: None
        """called when the last place is taken"""
        self._mean_duration_s = Ewma(EWMA_WEIGHT, FIRST_DURATION_S)
        self._refused = 0  # since the last request ended
        self._clock = clock

    @property
    def mean_duration_s(self) -> float:
        """How long a request takes, on average [s]."""
        return self._mean_duration_s.value

    @property
    def is_full(self) -> bool:
        """True if check() would raise."""
        return self.closed or self.in_flight >= self.capacity

    def check(self, *, continues: bool = False) -> None:
        """Raises if acquire() would; counts nothing.

        Args:
            continues: it belongs to what was admitted before, and is served although the limiter is closed.

        Raises:
            AtCapacity: the replica is full.
            Draining: the limiter was closed.
        """
        if self.closed and not continues:
            raise Draining("this replica is about to stop and admits nothing new; try again, another one may answer")
        if self.in_flight >= self.capacity:
            self._refused += 1
            raise AtCapacity(
                f"{self.capacity} requests are in progress (limits.max_in_flight)", retry_after_s=self.retry_after_s()
            )

    @contextmanager
    def acquire(self, *, continues: bool = False) -> Iterator[None]:
        """Counts one request as in flight while the block runs; `continues` as for check().

        Raises:
            AtCapacity, Draining: as check().
        """
        self.check(continues=continues)
        self.in_flight += 1
        self.admitted += 1
        if self.is_full:
            self.when_full()
        began = self._clock()
        try:
            yield
        finally:
            self.in_flight -= 1
            self._refused = 0
            self._mean_duration_s.add(self._clock() - began)

    def close(self) -> int:
        """Admits nothing from now on; requests in flight go on to their end.

        Returns:
            how many are in flight.
        """
        self.closed = True
        return self.in_flight

    def retry_after_s(self) -> float:
        """Returns when to try again: one request ends per mean duration / capacity; those refused earlier come first [s]."""
        return min(LONGEST_WAIT_S, self.mean_duration_s / self.capacity * max(1, self._refused))
