"""Waiting: until something has come true.

In:    a condition, a limit
Out:   how long it took
Owns:  nothing
Never: an event loop: it blocks
"""

import time
from collections.abc import Callable

POLL_S = 0.1


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> float:
    """Returns how long it took [s].

    Raises:
        TimeoutError: it did not come true.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(POLL_S)
    return time.monotonic() - began
