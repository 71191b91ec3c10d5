"""Recent overload: a lane that the engine refused a moment ago is refused at the ingress, which saves the call.

In:    refusals by the engine for lack of room, per version and lane; new requests
Out:   AtCapacity
Owns:  until when each lane of each version counts as full
Never: bodies; requests that the cache may answer, which need no slot
"""

import time
from collections.abc import Callable

from pipeline.errors import AtCapacity
from pipeline.types import Lane

HOLD_S = 0.25  # a full queue holds seconds of work, so it does not run empty meanwhile


class RecentOverload:
    """Remembers refusals by the engine for HOLD_S, so that a burst costs the engine one refusal per HOLD_S."""

    def __init__(self, hold_s: float = HOLD_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold_s = hold_s
        self._clock = clock
        self._full: dict[tuple[str, Lane], tuple[float, float]] = {}  # until when; when a place is expected

    def note(self, version: str, lane: Lane, error: AtCapacity) -> None:
        """Records that the engine refused this lane; less urgent lanes count as refused too."""
        now = self._clock()
        for other in list(Lane)[list(Lane).index(lane) :]:
            self._full[version, other] = now + self._hold_s, now + error.retry_after_s

    def check(self, version: str, lane: Lane) -> None:
        """Checks that the engine did not refuse this lane within HOLD_S.

        Raises:
            AtCapacity: it did, this lane or a more urgent one.
        """
        until, place_at = self._full.get((version, lane), (0.0, 0.0))
        now = self._clock()
        if now < until:
            raise AtCapacity("the engine's queue is full (engine.max_waiting)", retry_after_s=place_at - now)
