"""Breaker: a stage that fails is left alone for a moment, instead of being asked by everybody.

In:    how calls of one stage end
Out:   leave to call it, or StageUnavailable with the time to come back
Owns:  the counts of one stage, as one ingress replica sees them
Never: Ray; calls themselves; what is a client's mistake, a refusal for want of room, or somebody who leaves

    closed --(failures in a window, and a share of all calls)--> open --(open_s)--> half open --(an answer)--> closed
                                                                   ^                    |
                                                                   '----(a failure)-----'
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from pipeline.config import StrictModel
from pipeline.errors import EngineFault, NonFiniteOutput, StageUnavailable, SynthesisError

BUCKETS = 10  # a window moves on in tenths


class BreakerConfig(StrictModel):
    """When a stage counts as broken."""

    failures: int = Field(5, ge=1, le=10_000, description="calls of a stage that must fail within window_s to open its breaker")
    share: float = Field(0.5, gt=0, le=1, description="and of all its calls in that time, at least this share")
    window_s: float = Field(10.0, gt=0, le=600, description="how long a failure counts [s]")
    open_s: float = Field(2.0, gt=0, le=600, description="an open breaker lets one call try the stage each [s]")


class State(StrEnum):
    """Of a breaker."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    """one call is trying"""
    OPEN = "open"


@dataclass(slots=True)
class Bucket:
    """A tenth of a window."""

    number: int
    answered: int = 0
    failed: int = 0


class Breaker:
    """Of one stage."""

    def __init__(self, stage: str, config: BreakerConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.stage = stage
        self.opened = 0  # how often, since the replica started
        self.retries = 0  # calls tried a second time, likewise; counted by who tries
        self._config = config
        self._clock = clock
        self._buckets: deque[Bucket] = deque()
        self._opened_at: float | None = None  # when it last opened, or last let somebody try; None: closed
        self._trial: Call | None = None

    @property
    def state(self) -> State:
        """At this moment."""
        if self._opened_at is None:
            return State.CLOSED
        return State.OPEN if self._trial is None else State.HALF_OPEN

    def shown(self) -> dict[str, object]:
        """For people and dashboards."""
        return {"state": self.state.value, "failures": self.failures, "opened": self.opened, "retries": self.retries}

    @property
    def failures(self) -> int:
        """Within the window."""
        self._forget()
        return sum(bucket.failed for bucket in self._buckets)

    @contextmanager
    def watch(self) -> Iterator["Call"]:
        """One call of the stage, its second try included.

        Raises:
            StageUnavailable: the breaker is open.
        """
        call = self._admit()
        try:
            yield call
        except BaseException as error:
            if is_fault(error):
                self._failed(call)
            raise
        else:
            call.answered()
        finally:
            if self._trial is call:  # neither answered nor failed: somebody else may try
                self._trial = None
                self._opened_at = self._clock() - self._config.open_s

    def _admit(self) -> "Call":
        if self._opened_at is None:
            return Call(self)
        waited = self._clock() - self._opened_at
        if waited < self._config.open_s:
            raise StageUnavailable(
                f"the {self.stage} stage has just failed several times and is left alone for a moment",
                retry_after_s=self._config.open_s - waited,
            )
        # A trial that gives no sign of life does not keep the others out for ever.
        self._trial, self._opened_at = Call(self, is_trial=True), self._clock()
        return self._trial

    def _answered(self, call: "Call") -> None:
        self._bucket().answered += 1
        if call.is_trial:
            self._trial = self._opened_at = None
            self._buckets.clear()

    def _failed(self, call: "Call") -> None:
        self._bucket().failed += 1
        if call.is_trial and self._opened_at is not None:
            self._open()
        elif self._opened_at is None:
            failed = self.failures
            calls = failed + sum(bucket.answered for bucket in self._buckets)
            if failed >= self._config.failures and failed >= self._config.share * calls:
                self._open()

    def _open(self) -> None:
        self._trial = None
        self._opened_at = self._clock()
        self.opened += 1

    def _bucket(self) -> Bucket:
        self._forget()
        number = self._number()
        if not self._buckets or self._buckets[-1].number != number:
            self._buckets.append(Bucket(number))
        return self._buckets[-1]

    def _forget(self) -> None:
        oldest = self._number() - BUCKETS
        while self._buckets and self._buckets[0].number <= oldest:
            self._buckets.popleft()

    def _number(self) -> int:
        return int(self._clock() * BUCKETS / self._config.window_s)


class Call:
    """One call under a breaker's eyes."""

    def __init__(self, breaker: Breaker, *, is_trial: bool = False) -> None:
        self.is_trial = is_trial
        self._breaker = breaker
        self._has_answered = False

    def answered(self) -> None:
        """The stage has answered; of a stream the first item says so."""
        if not self._has_answered:
            self._has_answered = True
            self._breaker._answered(self)


def is_fault(error: BaseException) -> bool:
    """Whether the stage is to blame: not the client, not the load, not the numbers of one sequence."""
    if isinstance(error, EngineFault):
        return not isinstance(error, NonFiniteOutput)
    return isinstance(error, Exception) and not isinstance(error, SynthesisError)
