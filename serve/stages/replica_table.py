"""ReplicaTable: what is known of each replica of a stage, and the order in which a new call should ask them.

In:    load reports, refusals and builds, as they travel with answers; the names of the replicas; calls per replica
Out:   an order of names; AtCapacity where every replica has just refused; whether there is none
Owns:  one table per deployment and process
Never: Ray; a call

A count of calls says nothing of speed and length; a report says both, and is as old as the replica's last answer. So the number
of calls comes from whoever routes, and the time of a step from the reports.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from pipeline.errors import AtCapacity
from pipeline.types import Lane, LoadReport

REFUSED_S = 0.25  # a replica that has refused a lane is asked last for so long: its queue holds seconds of work
DRAWS = 3  # replicas that are compared: with more, all processes that route would choose the same one between two reports
MOST_REFUSALS = 1  # for want of room, that are followed by another try
WEIGHTS_S = 0.25  # how long the weights of the draws are used
LATEST_S = 10.0  # how long a report says how many are there: where no more calls go, no answer says that the queue has emptied


@dataclass(frozen=True, slots=True)
class Route:
    """Which replicas may take a call."""

    avoid: tuple[str, ...] = ()
    """names of replicas that have refused it"""
    build: str = ""
    """the fingerprint that they must have; empty: any"""


ANYWHERE = Route()


@dataclass(frozen=True, slots=True)
class _Refusal:
    until: float
    room_at: float


class ReplicaTable:
    """The replicas of one deployment, as one process knows them. The thread that routes and those that call share it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, draws: random.Random | None = None) -> None:
        """
        Args:
            clock: monotonic seconds.
        """
        self._clock = clock
        self._draws = draws or random.Random()
        self._changes = threading.Lock()
        self._names: tuple[str, ...] | None = None
        self._reports: dict[str, LoadReport] = {}
        self._reported_at: dict[str, float] = {}
        self._builds: dict[str, str] = {}
        self._refusals: dict[tuple[str, Lane], _Refusal] = {}
        self._weights: tuple[float, ...] = ()  # accumulated, of `_names`
        self._weighed_at = -WEIGHTS_S

    @property
    def is_empty(self) -> bool:
        """True if there is no replica, as far as this process knows."""
        return self._names == ()

    @property
    def reports(self) -> list[LoadReport]:
        """The latest report of each replica that has sent one."""
        return list(self._reports.values())

    @property
    def most_waiting(self) -> int:
        """The most sequences that wait before one replica, by the reports of the last LATEST_S."""
        now = self._clock()
        return max((report.waiting for report in self.reports if self._is_latest(report.replica, now)), default=0)

    def set_replicas(self, names: Iterable[str]) -> None:
        """Replaces the names of the replicas, and forgets what is known of others."""
        with self._changes:
            self._names = tuple(names)
            present = set(self._names)
            self._reports = {name: report for name, report in self._reports.items() if name in present}
            self._reported_at = {name: at for name, at in self._reported_at.items() if name in present}
            self._builds = {name: build for name, build in self._builds.items() if name in present}
            self._refusals = {key: refusal for key, refusal in self._refusals.items() if key[0] in present}
            self._weighed_at = -WEIGHTS_S

    def report(self, report: LoadReport) -> None:
        """Takes the report of a replica; that of one that has left says nothing any more."""
        with self._changes:
            if self._names is None or report.replica in self._names:
                self._reports[report.replica] = report
                self._reported_at[report.replica] = self._clock()
                self._builds[report.replica] = report.build

    def learn_build(self, replica: str, build: str) -> None:
        """Takes the fingerprint of a replica."""
        with self._changes:
            self._builds[replica] = build

    def refuse(self, replica: str, lane: Lane, retry_after_s: float) -> None:
        """Records that a replica has no room for a lane; less urgent lanes count as refused too."""
        now, lanes = self._clock(), list(Lane)
        with self._changes:
            for other in lanes[lanes.index(lane) :]:
                self._refusals[replica, other] = _Refusal(now + REFUSED_S, now + retry_after_s)

    def after_refusal(self, refusal: AtCapacity, lane: Lane, route: Route) -> Route | None:
        """Records a refusal for want of room. Returns the route of one more try; None: the refusal is final."""
        if not refusal.replica:
            return None
        if type(refusal) is AtCapacity:  # a promise that cannot be kept says nothing about others
            self.refuse(refusal.replica, lane, refusal.retry_after_s)
        following = replace(route, avoid=(*route.avoid, refusal.replica))
        return following if len(route.avoid) < MOST_REFUSALS and self.has_other(following) else None

    def check_room(self, lane: Lane) -> None:
        """Checks that not every replica has refused a lane within REFUSED_S.

        Raises:
            AtCapacity: they all have, this lane or a more urgent one.
        """
        now = self._clock()
        refusals = [self._refusals.get((name, lane)) for name in (self._reports if self._names is None else self._names)]
        refused = [refusal.room_at for refusal in refusals if refusal is not None and refusal.until > now]
        if refused and len(refused) == len(refusals):
            raise AtCapacity(
                "the queue of every replica is full (engine.max_waiting)", retry_after_s=max(0.1, min(refused) - now)
            )

    def has_other(self, route: Route) -> bool:
        """Returns True if a replica may take the call."""
        return bool(self._allowed(self._names or (), route))

    def order(self, lane: Lane, first_steps: int, calls: Callable[[str], int | None], route: Route = ANYWHERE) -> list[str]:
        """Draws a few replicas by their capacity; the one whose first audio would come soonest is the first.

        Args:
            calls: returns how many calls a replica has; None: not known, and its latest report says it.

        Returns:
            names; those that `route` allows, or any where it allows none.
        """
        names, now = self._names or (), self._clock()
        if route.avoid or route.build:
            names = self._allowed(names, route) or names
        if len(names) <= DRAWS:
            drawn = self._draws.sample(names, len(names))
        elif len(names) == len(self._weights_at(now)):
            drawn = list(dict.fromkeys(self._draws.choices(names, cum_weights=self._weights, k=2 * DRAWS)))[:DRAWS]
        else:
            drawn = self._draws.sample(names, DRAWS)
        usual = self._usual()

        def rank(name: str) -> tuple[bool, float, float]:
            count, report = calls(name), self._reports.get(name) or usual
            if count is None:
                count = report.sequences if report is not None and self._is_latest(name, now) else 0
            refusal = self._refusals.get((name, lane))
            is_full = refusal is not None and refusal.until > now
            if report is None:
                return is_full, 0.0, count
            return is_full, report.first_audio_s(count, lane, first_steps), count / report.usable

        return sorted(drawn, key=rank)

    def _is_latest(self, name: str, now: float) -> bool:
        return now - self._reported_at.get(name, -math.inf) < LATEST_S

    def _allowed(self, names: tuple[str, ...], route: Route) -> tuple[str, ...]:
        def may_take(name: str) -> bool:
            return name not in route.avoid and (not route.build or self._builds.get(name, "") in ("", route.build))

        return tuple(filter(may_take, names))

    def _weights_at(self, now: float) -> tuple[float, ...]:
        if now - self._weighed_at >= WEIGHTS_S:
            names, reports = self._names or (), self._reports
            rates = [report.capacity if (report := reports.get(name)) else 0.0 for name in names]
            usual = max(rates, default=0.0) or 1.0
            self._weights = tuple(accumulate(rate or usual for rate in rates))
            self._weighed_at = now
        return self._weights

    def _usual(self) -> LoadReport | None:
        """Returns what is assumed of a replica that has not reported yet: it is as slow as the slowest, and has no work."""
        reports: Collection[LoadReport] = self._reports.values()
        if len(reports) == len(self._names or ()) or not reports:
            return None
        slowest = min(list(reports), key=lambda report: report.capacity)
        return replace(slowest, running=0, waiting=0, waiting_steps=(0.0, 0.0, 0.0), remaining_steps=0.0)


_TABLES: dict[str, ReplicaTable] = {}


def table_of(deployment: str) -> ReplicaTable:
    """Returns the one table of a deployment in this process: its router and its callers share it."""
    return _TABLES.setdefault(deployment, ReplicaTable())
