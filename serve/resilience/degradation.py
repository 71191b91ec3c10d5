"""Degradation: how far the service is simplified under load, one step at a time, and back.

In:    the share of capacity in use and the real-time factor, about once per second
Out:   the active steps
Owns:  the level, and since when there is reason to change it
Never: requests, Ray; a change faster than its hysteresis
"""

import time
from collections.abc import Callable

from serve.config.policies import REFUSALS, DegradationStep, DegradeConfig

ESCALATE_ABOVE = 0.8  # share of the capacity, or of the engine's queue, that adds a step: a burst still fits
RECOVER_BELOW = 0.5  # share at or below which a step is removed: far enough from the other that the level settles
SLOW_RTF = 0.8  # [s per second of audio] adds a step, never a refusal: streams are about to stop
ESCALATE_AFTER_S = 5.0  # how long the load must be high: more than one burst
RECOVER_AFTER_S = 30.0  # how long it must be low: a step back is heard


class DegradationLadder:
    """Climbs one step when the load has been high for long enough, and descends one when it has been low."""

    def __init__(self, config: DegradeConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.level = 0
        self.changes = 0
        self._config = config
        self._clock = clock
        self._busy_since: float | None = None
        self._calm_since: float | None = None
        self._num_easing = sum(step not in REFUSALS for step in config.steps)

    @property
    def active_steps(self) -> tuple[DegradationStep, ...]:
        """The simplifications in force now."""
        return self._config.steps[: self.level]

    def observe(self, fullness: float, rtf: float) -> None:
        """Takes one measurement and changes the level if it is time to.

        Args:
            fullness: share of the capacity, or of the engine's queue, in use.
            rtf: real-time factor now [s per second of audio]; 0 while nothing is synthesised.
        """
        now, slow = self._clock(), rtf > SLOW_RTF
        busy = self.level < len(self._config.steps) and (fullness >= ESCALATE_ABOVE or (slow and self.level < self._num_easing))
        # A real-time factor that may not add a refusal may not keep one either.
        calm = self.level > 0 and fullness <= RECOVER_BELOW and not (slow and self.level <= self._num_easing)
        self._busy_since = (now if self._busy_since is None else self._busy_since) if busy else None
        self._calm_since = (now if self._calm_since is None else self._calm_since) if calm else None
        if self._busy_since is not None and now - self._busy_since >= ESCALATE_AFTER_S:
            self._move(1)
        elif self._calm_since is not None and now - self._calm_since >= RECOVER_AFTER_S:
            self._move(-1)

    def _move(self, by: int) -> None:
        self.level += by
        self.changes += 1
        self._busy_since = self._calm_since = None
