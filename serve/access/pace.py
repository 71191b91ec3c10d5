"""Pace: how many things may come at once, and how many a second in the long run.

In:    one thing after the other, a clock
Out:   whether it may come
Owns:  the time at which everything so far would have been due (GCRA, as in quotas.py)
Never: keys, quotas
"""

from collections.abc import Callable

from serve.errors import ApiError, ErrorSpec

MESSAGES, MESSAGES_A_SECOND = 4096, 500
"""pace of the messages of one socket, whatever its protocol; a long one counts once for each of its kilobytes"""
REFUSED = 8
"""how often a refused one counts beside"""


class Pace:
    """A token bucket."""

    def __init__(self, burst: int, a_second: float, clock: Callable[[], float]) -> None:
        """
        Args:
            burst: how many may come at once.
            a_second: how many may come in the long run.
            clock: seconds, of any beginning.
        """
        self._step_s = 1 / a_second
        self._ahead_s = burst * self._step_s
        self._clock = clock
        self._due = clock()

    def take(self, count: int = 1) -> bool:
        """Counts so many more; returns False, and counts nothing, if they come too soon."""
        now = self._clock()
        due = max(self._due, now) + count * self._step_s
        if due - now > self._ahead_s + self._step_s / 2:
            return False
        self._due = due
        return True


class MessagePace:
    """The pace of the messages of one socket."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._pace = Pace(MESSAGES, MESSAGES_A_SECOND, clock)

    def refused(self) -> None:
        """Counts that a message had no effect: its answer costs more than one that has."""
        self._pace.take(REFUSED)

    def takes(self, size: int) -> bool:
        """Counts a message of so many bytes or characters; returns False if it comes too soon."""
        return self._pace.take(1 + size // 1024)


def too_many_messages() -> ApiError:
    """Returns why a socket is closed whose messages came too fast."""
    message = f"a socket takes {MESSAGES_A_SECOND} messages or kilobytes a second in the long run: send text as it is spoken"
    return ApiError(message, ErrorSpec(429, "rate_limit_error", "rate_limited", False, 1.0))
