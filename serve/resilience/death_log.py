"""Death log: which requests were inside which replicas when those died, and which of them is to blame.

In:    digests of requests, names of replicas and stages, times
Out:   whether a request is poisonous, or implicated in consecutive deaths
Owns:  the deaths of the last minutes
Never: a clock of its own, requests themselves

Every request inside a replica when it dies is implicated. A request implicated in two consecutive deaths of one stage is
poisonous if no other request was inside both; a request that sees a third death is poisonous in any case.

Consecutive: a machine that dies takes several replicas with it, and one request may be inside them all. Within one stage those
deaths count once, because the work in the second replica began before the end of the first was known, so it was no retry. The
death of a machine counts at all because a request may cause it: one that fills the memory of a container ends all processes
in it.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

DEADLY = 2  # consecutive deaths of one stage after which a request may be to blame
MAX_DEATHS = 256  # remembered at once


@dataclass(slots=True)
class ReplicaDeath:
    """A replica that died, and the requests inside."""

    stage: str
    replica: str
    at: float
    implicated: dict[bytes, tuple[float, float]] = field(default_factory=dict)
    """digest of a request -> (when it first learnt of the death, start of its last call that failed of it)"""


class DeathLog:
    """The deaths of one ingress replica's stages, and what follows from them."""

    def __init__(self) -> None:
        self._deaths: deque[ReplicaDeath] = deque(maxlen=MAX_DEATHS)

    def record(self, digest: bytes, replica: str, stage: str, *, began: float, now: float) -> None:
        """Records that a call of a request failed because a replica died.

        Args:
            began: start of that call, by the clock of `now` [s].
        """
        death = next((known for known in self._deaths if known.replica == replica), None)
        if death is None:
            death = ReplicaDeath(stage, replica, now)
            self._deaths.append(death)
        known_at, last_began = death.implicated.get(digest, (now, began))
        death.implicated[digest] = (known_at, max(last_began, began))

    def clear(self, digest: bytes) -> None:
        """Removes a request from all deaths: it has just been completed."""
        for death in self._deaths:
            death.implicated.pop(digest, None)

    def forget_before(self, time: float) -> None:
        """Removes deaths older than `time`."""
        while self._deaths and self._deaths[0].at < time:
            self._deaths.popleft()

    def poisonous(self) -> set[bytes]:
        """Returns the digests of all poisonous requests."""
        implicated: set[bytes] = set().union(*(death.implicated for death in self._deaths))
        return {digest for digest in implicated if self.is_poisonous(digest)}

    def is_poisonous(self, digest: bytes) -> bool:
        """True if a request is to blame for the deaths of one stage."""
        return any(_is_to_blame(digest, deaths) for deaths in self._by_stage(digest))

    def is_suspicious(self, digest: bytes) -> bool:
        """True if a request is implicated in consecutive deaths of one stage, perhaps together with others."""
        return any(consecutive_deaths(digest, deaths) >= DEADLY for deaths in self._by_stage(digest))

    def _by_stage(self, digest: bytes) -> Iterable[list[ReplicaDeath]]:
        stages: dict[str, list[ReplicaDeath]] = {}
        for death in self._deaths:
            if digest in death.implicated:
                stages.setdefault(death.stage, []).append(death)
        return stages.values()


def consecutive_deaths(digest: bytes, deaths: Iterable[ReplicaDeath]) -> int:
    """Returns how many of the deaths a request saw were consecutive: each in work begun when the previous one was known.

    |--A--|            B began before the end of A was known, C after it: A and C, two
      |-----B-----|
            |---C---|
    """
    count, known = 0, -math.inf
    for known_at, began in sorted(death.implicated[digest] for death in deaths):
        if began >= known:
            count, known = count + 1, known_at
    return count


def _is_to_blame(digest: bytes, deaths: list[ReplicaDeath]) -> bool:
    """True if a request ended replicas, given the deaths of one stage that it saw."""
    count = consecutive_deaths(digest, deaths)
    if count != DEADLY:
        return count > DEADLY
    others = set().union(*(death.implicated for death in deaths)) - {digest}
    return all(
        consecutive_deaths(digest, [death for death in deaths if other in death.implicated]) < DEADLY for other in others
    )
