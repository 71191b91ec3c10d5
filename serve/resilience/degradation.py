"""Ladder: how far the service is simplified under load, one rung at a time, and back.

In:    how full the house is and how fast it speaks, each second or so
Out:   the rungs in force
Owns:  the level, and since when there is reason to change it
Never: requests, Ray; a change faster than its hysteresis
"""

import time
from collections.abc import Callable
from enum import StrEnum

from pydantic import Field, field_validator, model_validator

from pipeline.config import StrictModel
from serve.config.model_versions import VersionId


class Rung(StrEnum):
    """What is given up. All but the refusals change samples, if only by rounding."""

    REFINE = "refine"
    """texts are spoken as they are"""
    DENOISE = "denoise"
    FIRST_CHUNK = "first_chunk"
    """the smallest chunks are left out: fewer windows, first audio a little later"""
    SEGMENTS = "segments"
    """segments are half as long, so that slots are free again sooner"""
    VERSION = "version"
    """degrade.version speaks to whoever names no version"""
    BULK = "bulk"
    """the bulk lane is refused"""
    ALL = "all"
    """everybody is refused"""


REFUSALS = (Rung.BULK, Rung.ALL)
EASING = tuple(rung for rung in Rung if rung not in REFUSALS)


class DegradeConfig(StrictModel):
    """What is given up under load, and when."""

    rungs: tuple[Rung, ...] = Field(
        (Rung.REFINE, Rung.DENOISE, Rung.FIRST_CHUNK, Rung.SEGMENTS, Rung.BULK),
        description="what is given up, in this order; empty: nothing",
    )
    version: VersionId | None = Field(None, description="the version rung's: a lighter one of models")
    seeded: bool = Field(False, description="true: requests with a seed of their own are degraded too, and sound different")
    up: float = Field(0.8, gt=0, le=1, description="one rung more once this share of the places or the queue is taken")
    down: float = Field(0.5, ge=0, lt=1, description="one rung less once no more than this share is")
    rtf: float = Field(0.8, gt=0, le=10, description="one rung more, no refusal, once a second of audio takes longer [s]")
    climb_s: float = Field(5.0, gt=0, le=3600, description="there must be reason for so long before a rung is added [s]")
    rest_s: float = Field(30.0, gt=0, le=3600, description="and for so long before one is taken back [s]")

    @model_validator(mode="after")
    def _there_is_a_gap(self) -> "DegradeConfig":
        if self.down >= self.up:
            raise ValueError(f"down {self.down:g} must lie below up {self.up:g}, or the ladder would never rest")
        return self

    @field_validator("rungs")
    @classmethod
    def _each_once(cls, rungs: tuple[Rung, ...]) -> tuple[Rung, ...]:
        if len(set(rungs)) != len(rungs) or [rung for rung in Rung if rung in rungs] != list(rungs):
            raise ValueError(f"name each rung once, in this order: {', '.join(Rung)}")
        return rungs


class Ladder:
    """The policy alone."""

    def __init__(self, config: DegradeConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.level = 0
        self.changes = 0
        self._config = config
        self._clock = clock
        self._busy_since: float | None = None
        self._calm_since: float | None = None
        self._easing = sum(rung not in REFUSALS for rung in config.rungs)

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Those in force."""
        return self._config.rungs[: self.level]

    def observe(self, fullness: float, rtf: float) -> None:
        """Look once.

        Args:
            fullness: share of the places, or of the engine's queue, that is taken.
            rtf: seconds a second of audio takes now; 0 while nothing is spoken.
        """
        config, now = self._config, self._clock()
        slow = rtf > config.rtf
        busy = self.level < len(config.rungs) and (fullness >= config.up or (slow and self.level < self._easing))
        # A pace that may not add a refusal may not keep one either.
        calm = self.level > 0 and fullness <= config.down and not (slow and self.level <= self._easing)
        self._busy_since = (now if self._busy_since is None else self._busy_since) if busy else None
        self._calm_since = (now if self._calm_since is None else self._calm_since) if calm else None
        if self._busy_since is not None and now - self._busy_since >= config.climb_s:
            self._move(1)
        elif self._calm_since is not None and now - self._calm_since >= config.rest_s:
            self._move(-1)

    def _move(self, by: int) -> None:
        self.level += by
        self.changes += 1
        self._busy_since = self._calm_since = None
