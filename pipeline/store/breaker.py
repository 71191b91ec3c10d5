"""Breaker: while a store hangs one caller waits for it, and all others are told at once.

In:    the beginning and the end of each question
Out:   permission to ask
Owns:  the questions in flight, and whether the latest had an answer
Never: a wait longer than a slow question
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLOW_S = 0.5
"""a question without an answer for so long lets no other one follow"""
MOST_IN_FLIGHT = 8


class Open(Exception):
    """The store is not asked now: somebody waits for its answer already."""


class Breaker:
    """Safe to share between threads."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, slow_s: float = SLOW_S, most_in_flight: int = MOST_IN_FLIGHT
    ) -> None:
        """
        Args:
            slow_s: time without an answer after which no other question follows.
            most_in_flight: questions at a time; others wait for their turn.
        """
        self._clock = clock
        self._slow_s = slow_s
        self._most_in_flight = most_in_flight
        self._turns = threading.Condition()
        self._began: list[float] = []  # of the questions in flight
        self.is_silent = False
        """the latest question that ended had no answer"""

    @contextmanager
    def question(self) -> Iterator[None]:
        """The block asks the store; it calls `failed` where there is no answer.

        Raises:
            Open: the store is known not to answer, or a question has waited for slow_s.
        """
        began = self._enter()
        try:
            yield
        finally:
            with self._turns:
                self._began.remove(began)
                self._turns.notify()

    def answered(self) -> None:
        """The store answers."""
        self.is_silent = False

    def failed(self) -> None:
        """The store did not answer."""
        with self._turns:
            self.is_silent = True
            self._turns.notify_all()

    def _enter(self) -> float:
        with self._turns:
            give_up_at = self._clock() + self._slow_s
            while len(self._began) >= (1 if self.is_silent else self._most_in_flight) or self._is_slow():
                if self.is_silent or self._is_slow() or not self._turns.wait(give_up_at - self._clock()):
                    raise Open
            now = self._clock()
            self._began.append(now)
            return now

    def _is_slow(self) -> bool:
        return bool(self._began) and self._clock() - min(self._began) > self._slow_s
