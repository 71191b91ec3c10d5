"""Observer: the events of the engine that metrics count.

Out:   EngineObserver
Never: anything that blocks: it is called on the engine's thread, between two rounds
"""

from typing import Protocol

from pipeline.types import Lane


class EngineObserver(Protocol):
    """Receives events of sequences. Every call must return at once."""

    def scheduled(self, waited_s: float, lane: Lane) -> None:
        """A sequence got its first slot, `waited_s` seconds after it was submitted."""
        ...

    def preempted(self) -> None:
        """A bulk sequence gave its slot to one with a listener."""
        ...

    def wasted(self, steps: int, reason: str) -> None:
        """A sequence ended early, after so many steps; `reason` is cancelled, deadline, stalled or broken."""
        ...


class NullEngineObserver:
    """Observer that ignores all events."""

    def scheduled(self, waited_s: float, lane: Lane) -> None:
        """Ignores the event."""

    def preempted(self) -> None:
        """Ignores the event."""

    def wasted(self, steps: int, reason: str) -> None:
        """Ignores the event."""
