"""Cold start: stages that may have no replica (autoscaling_config.min_replicas: 0), and how long the first one will take.

In:    the names of the deployments that a request needs
Out:   go on, wait, or StageAsleep with the time that is left; the state of each deployment
Owns:  at most one waiting call per deployment, which is the demand that Serve's autoscaling follows; how long wakes take
Never: a call of the model

Serve's router holds a call of a deployment without replicas until one has started, however long that takes. So a request is
refused before it gets there, and a call without work waits there in its place.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from pipeline.errors import StageAsleep, SynthesisError
from pipeline.ewma import Ewma
from serve.stages.stage_clients import await_replica
from serve.stages.stage_handle import StageHandle

LOG = logging.getLogger("ray.serve.chattts")

FIRST_GUESS_S = 30.0  # how long a replica takes to start, until one has been seen to
LEAST_S = 1.0  # what is left at least of a wake that takes longer than usual
LATEST_COUNTS = 0.5


class Wakefulness(StrEnum):
    """Whether a deployment has replicas."""

    AWAKE = "awake"
    ASLEEP = "asleep"
    """it has none, and nobody has asked for one"""
    WAKING = "waking"
    """it has none, and one is being started"""


class ColdStarts:
    """Wakes the deployments behind one ingress replica."""

    def __init__(
        self, handles: Mapping[str, StageHandle], give_up_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            handles: deployment name -> its handle.
            give_up_s: after this time Serve is no longer asked for a replica, until the next request is [s].
        """
        self._handles = handles
        self._give_up_s = give_up_s
        self._clock = clock
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._began: dict[str, float] = {}
        self._took = {name: Ewma(LATEST_COUNTS, FIRST_GUESS_S, is_guess=True) for name in handles}

    def state(self, name: str) -> Wakefulness:
        """Returns whether a deployment has replicas now, as far as this process knows."""
        if not self._handles[name].is_asleep:
            return Wakefulness.AWAKE
        return Wakefulness.WAKING if name in self._calls else Wakefulness.ASLEEP

    def is_awake(self, name: str) -> bool:
        """Returns True if a deployment has replicas, or always should."""
        return self.state(name) is Wakefulness.AWAKE

    def awake(self, names: Iterable[str]) -> list[str]:
        """Returns those of the deployments that are awake."""
        return list(filter(self.is_awake, names))

    def check(self, names: Iterable[str]) -> None:
        """Begins to wake the deployments that are asleep.

        Raises:
            StageAsleep: at least one is, or is not awake yet.
        """
        if asleep := [name for name in names if not self.is_awake(name)]:
            for name in asleep:
                self._wake(name)
            raise self._refusal(asleep)

    async def wait(self, names: Iterable[str], within_s: float) -> float:
        """Wakes the deployments that are asleep, and waits for them if they will be awake in time.

        Args:
            within_s: how long the caller can wait [s].

        Returns:
            how long it waited; 0: all were awake [s].

        Raises:
            StageAsleep: they will not be, or were not.
        """
        waited_s, began, needed = 0.0, self._clock(), list(names)
        while True:
            try:
                self.check(needed)
            except StageAsleep as refusal:
                if refusal.retry_after_s > within_s - waited_s:
                    raise
                calls = [call for name in needed if (call := self._calls.get(name))]
                await asyncio.wait(calls, timeout=within_s - waited_s)  # it leaves them waiting: others may need them
                waited_s = self._clock() - began
            else:
                return waited_s

    def _wake(self, name: str) -> None:
        if name not in self._calls:
            LOG.info("waking: %s has no replica, and a request needs one", name)
            self._began[name] = self._clock()
            call = self._calls[name] = asyncio.create_task(self._call(name))
            call.add_done_callback(lambda _: self._calls.pop(name))

    async def _call(self, name: str) -> None:
        try:
            async with asyncio.timeout(self._give_up_s):
                await await_replica(self._handles[name])
        except (TimeoutError, SynthesisError):
            return  # the next request asks again
        took_s = self._clock() - self._began[name]
        self._took[name].add(took_s)
        LOG.info("waking: %s has a replica after %.1f s", name, took_s)

    def _refusal(self, asleep: list[str]) -> StageAsleep:
        left_s = max(max(self._took[name].value - (self._clock() - self._began[name]), LEAST_S) for name in asleep)
        return StageAsleep(
            f"{' and '.join(asleep)} had nothing to do for long: a replica is being started, in about {left_s:.0f} s. "
            "Try again then, or send a deadline_ms that leaves it this time",
            retry_after_s=left_s,
        )
