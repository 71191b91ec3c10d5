"""Taken over: how far a segment has come, whichever replicas make it one after the other.

In:    the blocks of each replica, and its death
Out:   the blocks that nobody has had yet; what to ask the next replica for
Owns:  the place of one segment
Never: a step twice; steps of two builds
"""

import time
from dataclasses import replace

from pipeline.errors import OtherBuild
from pipeline.types import Lane, Position, Prompt, StepBlock
from serve.observability.stage_timings import current_timings

MOST_TRIES = 2  # of a segment that has not begun
MOST_FAIL_OVERS = 4  # of one that has


class Segment:
    """A segment on its way to its listener."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._place = Position()
        self._died_at: float | None = None

    @property
    def has_begun(self) -> bool:
        """True once somebody may be listening to it."""
        return self._place.has_begun

    @property
    def most_tries(self) -> int:
        """How many replicas may be asked for it."""
        return 1 + MOST_FAIL_OVERS if self.has_begun else MOST_TRIES

    def prompt(self) -> Prompt:
        """Returns the prompt for the next replica: what is listened to is more urgent than whatever has not begun."""
        scheduling = self._prompt.scheduling
        if not self.has_begun or scheduling.lane is Lane.BULK:
            return self._prompt
        return replace(self._prompt, scheduling=replace(scheduling, lane=Lane.INTERACTIVE, first_audio_s=None))

    def rest_of(self, block: StepBlock) -> StepBlock:
        """Returns what is new in a block; it may be empty.

        Raises:
            OtherBuild: what was delivered comes from another build.
        """
        if not self._place.precedes(block.fingerprint):
            raise OtherBuild("the replica that spoke has died, and the others are of another build")
        self._place |= Position(build=block.fingerprint)
        return block.after(self._place)

    def deliver(self, rest: StepBlock) -> None:
        """Counts what is delivered; the first of it after a death ends the interruption."""
        if self._died_at is not None:
            current_timings().failed_over(self._place.step, time.monotonic() - self._died_at)
            self._died_at = None
        self._place |= rest.end

    def lose_replica(self) -> None:
        """Notes that the replica has died; further deaths until the next delivery are the same interruption."""
        if self.has_begun and self._died_at is None:
            self._died_at = time.monotonic()
