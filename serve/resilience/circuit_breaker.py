"""Circuit breaker: refuses calls of a failing stage for a while, instead of making all of them.

In:    outcomes and signs of life of the calls of one stage; answers of its replicas to probes
Out:   permission to call it, or StageUnavailable with the time to retry
Owns:  the counts of one stage, as one ingress replica sees them
Never: calls themselves; counting mistakes of clients, refusals for lack of capacity, or clients that leave

    closed --(failures in a window, and a share of all calls)--> open --(OPEN_S)--> half open --(an answer)--> closed
                                                                   ^                    |
                                                                   '----(a failure)-----'

Calls of a hanging stage do not end: callers wait until their own timeout. So when calls are in progress and none has had a sign
of life for SILENCE_S, replicas.py probes the replicas. If none is healthy, the breaker opens at once, and closes with
the first sign of life of any call. If one is healthy and has work, the calls wait for it, which is no failure. If none has any
work, the calls have failed.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from pipeline.errors import EngineFault, NonFiniteOutput, StageUnavailable, SynthesisError

MIN_FAILURES = 5  # of calls within the window, before it opens: fewer may be the fault of single requests
FAILURE_RATIO = 0.5  # of the calls within the window: most of what is asked of the stage fails
WINDOW_S = 10.0  # how long a call counts: longer than the time-outs in which a replica is replaced by a well one
OPEN_S = 2.0  # between two trial calls: short beside the start of a replica
SILENCE_S = 3.0  # without progress in any call: far more than one round of an engine takes
BUCKETS = 10  # a window moves on in tenths


class State(StrEnum):
    """State of a breaker."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    """one trial call is in progress"""
    OPEN = "open"


@dataclass(slots=True)
class Bucket:
    """Counts of a tenth of the window."""

    number: int
    answered: int = 0
    failed: int = 0


class Breaker:
    """Counts the calls of one stage, and opens when too many of them fail."""

    def __init__(self, stage: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.stage = stage
        self.opened = 0  # number of times, since the replica started
        self.retries = 0  # calls retried since then; the caller counts them
        self._clock = clock
        self._buckets: deque[Bucket] = deque()
        self._under_way: set[Call] = set()
        self._quiet_since = clock()  # latest sign of life of any call, or start of the first call after an idle time
        self._idle_since = clock()  # when a call last ended
        self._opened_at: float | None = None  # when it last opened, or last admitted a trial; None: closed
        self._opened_by_silence = False
        self._trial: Call | None = None

    @property
    def state(self) -> State:
        """The state now."""
        if self._opened_at is None:
            return State.CLOSED
        return State.OPEN if self._trial is None else State.HALF_OPEN

    def summary(self) -> dict[str, object]:
        """Returns state and counts for /health."""
        return {"state": self.state.value, "failures": self.failures, "opened": self.opened, "retries": self.retries}

    @property
    def failures(self) -> int:
        """Number of failures within the window."""
        self._forget()
        return sum(bucket.failed for bucket in self._buckets)

    @property
    def is_silent(self) -> bool:
        """True if calls are in progress and no call, not even one that has ended, had a sign of life for SILENCE_S."""
        return bool(self._under_way) and self._clock() - self._quiet_since >= SILENCE_S

    def judge_silence(self, *, is_well: bool, has_work: bool) -> None:
        """Takes the result of probing the replicas of a silent stage.

        Args:
            is_well: a replica answers and reports no trouble.
            has_work: a healthy replica has work.
        """
        if not self.is_silent:
            return  # a sign of life came during the probe
        if not is_well:
            if self._opened_at is None:
                self._open(by_silence=True)
        elif not has_work:
            for call in self._under_way:
                if not call.has_answered and not call.has_failed and self._clock() - call.began >= SILENCE_S:
                    self._failed(call)

    @contextmanager
    def watch(self) -> Iterator["Call"]:
        """Counts one call of the stage, its retry included.

        Raises:
            StageUnavailable: the breaker is open.
        """
        call = self._admit()
        if not self._under_way and self._clock() - self._idle_since > SILENCE_S:
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
            if self._trial is call:  # neither answered nor failed: the next call may try
                self._trial = None
                self._opened_at = self._clock() - OPEN_S

    def _admit(self) -> "Call":
        if self._opened_at is None:
            return Call(self, self._clock())
        waited = self._clock() - self._opened_at
        if waited < OPEN_S:
            raise StageUnavailable(
                f"the {self.stage} stage has just failed several times and is not called for a moment",
                retry_after_s=OPEN_S - waited,
            )
        # A trial without a sign of life does not block the others for ever.
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
            if failed >= MIN_FAILURES and failed >= FAILURE_RATIO * calls:
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
        return int(self._clock() * BUCKETS / WINDOW_S)


class Call:
    """One call that a breaker counts."""

    def __init__(self, breaker: Breaker, began: float, *, is_trial: bool = False) -> None:
        self.began = began
        self.is_trial = is_trial
        self.has_answered = False
        self.has_failed = False
        self._breaker = breaker

    def gave_sign(self) -> None:
        """Called when the stage answers; for a stream, at every item."""
        self._breaker._gave_sign()
        if not self.has_answered:
            self.has_answered = True
            self._breaker._answered(self)


def is_fault(error: BaseException) -> bool:
    """True if the stage is to blame, not the client, the load or the numbers of one sequence."""
    if isinstance(error, EngineFault):
        return not isinstance(error, NonFiniteOutput)
    return isinstance(error, Exception) and not isinstance(error, SynthesisError)
