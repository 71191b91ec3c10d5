"""Figures: what one reply measures of itself, and who is told.

In:    times of what was sent
Out:   ReplyStats
Owns:  the play cursor of one reply
Never: Ray, a client's text
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

CONTINUOUS_S = 0.1  # a listener who waits less than this in all hears one piece


class Outcome(StrEnum):
    """How a request ended."""

    DONE = "done"
    REFUSED = "refused"
    """an error reply; nothing was heard"""
    CUT = "cut"
    """a failure after the first audio"""
    LEFT = "left"
    """the client went away"""


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """One reply, measured."""

    outcome: Outcome
    code: str = ""
    """error code of API replies, where there is one"""
    streamed: bool = False
    first_audio_s: float | None = None
    """from the arrival of the request; None: nothing was heard"""
    took_s: float = 0.0
    audio_s: float = 0.0
    stalled_s: float = 0.0
    """how long a listener who plays at once has waited in the middle"""
    characters: int = 0
    warnings: Mapping[str, int] = field(default_factory=dict)
    """code of a text warning: how often"""


class ReplyObserver(Protocol):
    """Who is told about every reply."""

    def finished(self, stats: ReplyStats) -> None:
        """A reply is over, however it ended."""
        ...

    def in_flight_changed(self, in_flight: int) -> None:
        """How many requests are inside, whenever that changes."""
        ...

    def rejected(self, code: str) -> None:
        """A request was refused before any route saw it."""
        ...


class NullReplyObserver:
    """A ReplyObserver that keeps nothing: where there is no registry."""

    def finished(self, stats: ReplyStats) -> None:
        """See ReplyObserver."""

    def in_flight_changed(self, in_flight: int) -> None:
        """See ReplyObserver."""

    def rejected(self, code: str) -> None:
        """See ReplyObserver."""


class PlayCursor:
    """A listener who plays from the first audio on: when would playback have had to wait, and for how long?"""

    def __init__(self) -> None:
        self.stalled_s = 0.0
        self._ends_at: float | None = None

    def arrived(self, now: float, audio_s: float) -> None:
        """A piece of audio left at `now` [s of any clock]."""
        if self._ends_at is not None and now > self._ends_at:
            self.stalled_s += now - self._ends_at
        self._ends_at = max(now, self._ends_at if self._ends_at is not None else now) + audio_s
