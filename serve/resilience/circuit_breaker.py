"""Breaker: a stage that fails is left alone for a moment, instead of being asked by everybody.

In:    how calls of one stage end, when they had a sign of life, whether a replica of it answers questions about itself
Out:   leave to call it, or StageUnavailable with the time to come back
Owns:  the counts of one stage, as one ingress replica sees them
Never: Ray; calls themselves; what is a client's mistake, a refusal for want of room, or somebody who leaves

    closed --(failures in a window, and a share of all calls)--> open --(open_s)--> half open --(an answer)--> closed
                                                                   ^                    |
                                                                   '----(a failure)-----'

A stage that hangs ends no call: its callers wait until their own time is over. So when calls are under way and none has had a
sign of life for silence_s, version_pipelines.py asks its replicas. If none is well, the breaker opens at once, and
closes with the first sign of life of any call. If one is well and has work, those calls wait for it, which is no failure; if
none of them knows of any work, the calls have failed.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from pipeline.errors import EngineFault, NonFiniteOutput, StageUnavailable, SynthesisError
from serve.config.policies import BreakerConfig

BUCKETS = 10  # a window moves on in tenths


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
        self._under_way: set[Call] = set()
        self._quiet_since = clock()  # the latest sign of life of any call, or when the first one came after a time without
        self._idle_since = clock()  # when a call last ended
        self._opened_at: float | None = None  # when it last opened, or last let somebody try; None: closed
        self._opened_by_silence = False
        self._trial: Call | None = None

    @property
    def state(self) -> State:
        """At this moment."""
        if self._opened_at is None:
            return State.CLOSED
        return State.OPEN if self._trial is None else State.HALF_OPEN

    def summary(self) -> dict[str, object]:
        """For people and dashboards."""
        return {"state": self.state.value, "failures": self.failures, "opened": self.opened, "retries": self.retries}

    @property
    def failures(self) -> int:
        """Within the window."""
        self._forget()
        return sum(bucket.failed for bucket in self._buckets)

    @property
    def is_silent(self) -> bool:
        """Whether calls are under way and none has had a sign of life for silence_s, nor those that have left meanwhile."""
        return bool(self._under_way) and self._clock() - self._quiet_since >= self._config.silence_s

    def judge_silence(self, *, is_well: bool, has_work: bool) -> None:
        """What the stage's replicas said when they were asked because it is silent.

        Args:
            is_well: one of them answers and knows of no trouble.
            has_work: one of those has something to do.
        """
        if not self.is_silent:
            return  # a sign came while they were asked
        if not is_well:
            if self._opened_at is None:
                self._open(by_silence=True)
        elif not has_work:
            for call in self._under_way:
                if not call.has_answered and not call.has_failed and self._clock() - call.began >= self._config.silence_s:
                    self._failed(call)

    @contextmanager
    def watch(self) -> Iterator["Call"]:
        """One call of the stage, its second try included.

        Raises:
            StageUnavailable: the breaker is open.
        """
        call = self._admit()
        if not self._under_way and self._clock() - self._idle_since > self._config.silence_s:
            self._quiet_since = self._clock()
        self._under_way.add(call)
        try:
            yield call
        except BaseException as error:
            if is_fault(error) and not call.has_failed:
                self._failed(call)
            raise
        else:
            call.gave_sign()
        finally:
            self._under_way.remove(call)
            self._idle_since = self._clock()
            if self._trial is call:  # neither answered nor failed: somebody else may try
                self._trial = None
                self._opened_at = self._clock() - self._config.open_s

    def _admit(self) -> "Call":
        if self._opened_at is None:
            return Call(self, self._clock())
        waited = self._clock() - self._opened_at
        if waited < self._config.open_s:
            raise StageUnavailable(
                f"the {self.stage} stage has just failed several times and is left alone for a moment",
                retry_after_s=self._config.open_s - waited,
            )
        # A trial that gives no sign of life does not keep the others out for ever.
        self._trial, self._opened_at = Call(self, self._clock(), is_trial=True), self._clock()
        return self._trial

    def _gave_sign(self) -> None:
        self._quiet_since = self._clock()
        if self._opened_by_silence:
            self._close()

    def _answered(self, call: "Call") -> None:
        self._bucket().answered += 1
        if call.is_trial:
            self._close()

    def _failed(self, call: "Call") -> None:
        call.has_failed = True
        self._bucket().failed += 1
        if call.is_trial and self._opened_at is not None:
            self._open()
        elif self._opened_at is None:
            failed = self.failures
            calls = failed + sum(bucket.answered for bucket in self._buckets)
            if failed >= self._config.min_failures and failed >= self._config.failure_ratio * calls:
                self._open()

    def _open(self, *, by_silence: bool = False) -> None:
        self._trial = None
        self._opened_at = self._clock()
        self._opened_by_silence = by_silence
        self.opened += 1

    def _close(self) -> None:
        self._trial = self._opened_at = None
        self._opened_by_silence = False
        self._buckets.clear()

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

    def __init__(self, breaker: Breaker, began: float, *, is_trial: bool = False) -> None:
        self.began = began
        self.is_trial = is_trial
        self.has_answered = False
        self.has_failed = False
        self._breaker = breaker

    def gave_sign(self) -> None:
        """The stage has answered; of a stream each item says so."""
        self._breaker._gave_sign()
        if not self.has_answered:
            self.has_answered = True
            self._breaker._answered(self)


def is_fault(error: BaseException) -> bool:
    """Whether the stage is to blame: not the client, not the load, not the numbers of one sequence."""
    if isinstance(error, EngineFault):
        return not isinstance(error, NonFiniteOutput)
    return isinstance(error, Exception) and not isinstance(error, SynthesisError)
