"""Reply statistics: the measurements of one reply, and the interface of what receives them.

In:    the times at which audio arrived
Out:   ReplyStats, ReplyObserver
Owns:  the play cursor of one reply
Never: Ray, a client's text
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

CONTINUOUS_S = 0.1  # playback that waits less than this in all sounds uninterrupted


class Outcome(StrEnum):
    """How a request ended."""

    DONE = "done"
    REFUSED = "refused"
    """an error reply, without audio"""
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
    """from the arrival of the request; None: there was no audio"""
    took_s: float = 0.0
    audio_s: float = 0.0
    stalled_s: float = 0.0
    """how long playback that begins with the first audio had to wait later"""
    is_resumed: bool = False
    """it went on where a client had lost an earlier reply"""
    fail_overs: int = 0
    """segments that another replica went on with"""
    repeated_steps: int = 0
    interrupted_s: float = 0.0
    """from the deaths of replicas to the next new step; the listener hears only what exceeds the lead"""
    characters: int = 0
    warnings: Mapping[str, int] = field(default_factory=dict)
    """code of a text warning: how often"""


class ReplyObserver(Protocol):
    """Is notified about every reply."""

    def finished(self, stats: ReplyStats) -> None:
        """A reply is over, however it ended."""
        ...

    def in_flight_changed(self, in_flight: int) -> None:
        """The number of requests in flight has changed."""
        ...

    def rejected(self, code: str) -> None:
        """A request was refused before it reached a route."""
        ...

    def interrupted(self, unheard_steps: int) -> None:
        """A listener interrupted a conversation; the audio of so many steps was sent and not heard."""
        ...


class PlayCursor:
    """Simulates playback from the first audio on: how long would it have had to wait for more?"""

    def __init__(self) -> None:
        self.stalled_s = 0.0
        self._ends_at: float | None = None

    def arrived(self, now: float, audio_s: float) -> None:
        """A piece of audio left at `now` [s of any clock]."""
        if self._ends_at is not None and now > self._ends_at:
            self.stalled_s += now - self._ends_at
        self._ends_at = max(now, self._ends_at if self._ends_at is not None else now) + audio_s

    def left_s(self, now: float) -> float:
        """Returns how much of the audio cannot have been played by `now` [s]."""
        return 0.0 if self._ends_at is None else max(0.0, self._ends_at - now)
