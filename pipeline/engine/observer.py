"""Watch: who is told what happens in the engine.

In:    nothing
Out:   EngineObserver
Owns:  nothing
Never: Ray; anything that blocks: it is called on the engine's thread, between two rounds
"""

from typing import Protocol

from pipeline.types import Lane


class EngineObserver(Protocol):
    """Is told about sequences."""

    def scheduled(self, waited_s: float, lane: Lane) -> None:
        """A sequence got its first slot, so long after it was submitted."""
        ...

    def preempted(self) -> None:
        """A sequence was interrupted for a more urgent one."""
        ...

    def wasted(self, steps: int, reason: str) -> None:
        """Steps were made that nobody will hear: cancelled, deadline, stalled or broken."""
        ...


class NullEngineObserver:
    """Tells nobody."""

    def scheduled(self, waited_s: float, lane: Lane) -> None:
        """See EngineObserver."""

    def preempted(self) -> None:
        """See EngineObserver."""

    def wasted(self, steps: int, reason: str) -> None:
        """See EngineObserver."""
