"""Taken over: how far a segment has come, whichever replicas make it one after the other.

In:    the blocks of each replica, and its death
Out:   the blocks that nobody has had yet; what to ask the next replica for
Owns:  the place of one segment
Never: a step twice; steps of two builds
"""

import time
from dataclasses import replace

from pipeline.errors import AtCapacity, OtherBuild
from pipeline.types import Lane, Position, Prompt, StepBlock
from serve.observability.stage_timings import current_timings
from serve.stages.replica_table import ReplicaTable, Route

MOST_TRIES = 2  # of a segment that has not begun
MOST_FAIL_OVERS = 4  # of one that has
MOST_OTHER_BUILDS = 16  # replicas that are asked although they turn out to be of another build
OTHER_BUILD = "the replica that spoke has died, and the others are of another build"


class Segment:
    """A segment on its way to its listener."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._place = Position()
        self._died_at: float | None = None
        self.deaths = self._other_builds = 0
        self._avoid: tuple[str, ...] = ()

    @property
    def has_begun(self) -> bool:
        """True once somebody may be listening to it."""
        return self._place.has_begun

    @property
    def route(self) -> Route:
        """Which replicas may be asked next: none that has refused it, and once it has begun only those of its build."""
        return Route(self._avoid, self._place.build if self.has_begun else "")

    def may_follow_death(self) -> bool:
        """Counts the death of a replica; returns True if another one may be asked."""
        self.deaths += 1
        return self.deaths < (1 + MOST_FAIL_OVERS if self.has_begun else MOST_TRIES)

    def may_follow_refusal(self, refusal: AtCapacity, table: ReplicaTable) -> bool:
        """Takes a refusal for want of room; returns True if one more replica may be asked."""
        following = table.after_refusal(refusal, self._prompt.scheduling.lane, self.route)
        if following is None or self.has_begun:
            return False
        self._avoid = following.avoid
        return True

    def may_follow_other_build(self, other: OtherBuild, table: ReplicaTable) -> bool:
        """Counts a replica of another build; returns True if one of the right build may be left."""
        self._other_builds += 1
        if not other.replica:
            return False
        table.learn_build(other.replica, other.build)
        return self._other_builds <= MOST_OTHER_BUILDS and table.has_other(self.route)

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
            raise OtherBuild(OTHER_BUILD)
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
