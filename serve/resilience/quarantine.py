"""Quarantine: a request that ends replicas is kept from ending more of them.

In:    requests on their way to the model; deaths of replicas they were inside
Out:   permission to go on, or RequestQuarantined
Owns:  a death log with keyed digests of requests; no text
Never: a digest that means anything outside this process

death_log.py decides which request is poisonous. Where several requests were inside the same replicas, they are retried alone,
one at a time: a request that is served to its end is cleared. Otherwise two dead replicas would shut out every request that was
inside them.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from pipeline.errors import AtCapacity, RequestQuarantined
from pipeline.types import AudioOptions, CacheControl, SamplingParams, SchedulingParams, SynthesisRequest
from serve.resilience.death_log import DeathLog

DURATION_S = 600.0  # of a refusal, and of the memory of a death: several starts of a replica


class TrackedRequest:
    """One request in progress."""

    def __init__(self, quarantine: "Quarantine", digest: bytes) -> None:
        self._quarantine = quarantine
        self._digest = digest
        self.has_ended = False

    def record_death(self, replica: str, stage: str, began: float) -> None:
        """Records that a call, begun at `began` [s], failed because its replica died."""
        self._quarantine.record_death(self._digest, replica, stage, began)

    @property
    def is_poisonous(self) -> bool:
        """True if the request would be refused now; then no part of it is retried."""
        return self._quarantine.is_poisonous(self._digest)


CURRENT_REQUEST: ContextVar[TrackedRequest | None] = ContextVar("chattts_current_request", default=None)
"""the request that the running task works for, or the one that it has worked for"""


class Quarantine:
    """Tracks the requests of one ingress replica, and refuses those that repeatedly crashed replicas."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0  # since the replica started
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._deaths = DeathLog()
        self._retried_alone: bytes | None = None

    @property
    def quarantined(self) -> int:
        """Number of requests that would be refused now."""
        self._forget()
        return len(self._deaths.poisonous())

    @contextmanager
    def track(self, request: SynthesisRequest) -> Iterator[None]:
        """Tracks a request while the block runs, with everything its task does and starts.

        Raises:
            RequestQuarantined: the request is poisonous.
            AtCapacity: see `admit`.
        """
        with self.admit(self.digest(request)) as tracked:
            CURRENT_REQUEST.set(tracked)  # never reset: a task works for one request, and a generator may end in another task
            yield

    def summary(self) -> dict[str, int]:
        """Returns the counts that /health shows."""
        return {"quarantined": self.quarantined, "refused": self.refused}

    def digest(self, request: SynthesisRequest) -> bytes:
        """Returns a digest of all that reaches the model except the seed: a retry by the client has another one."""
        seedless = replace(request.sampling, seed=0, attempt=0)
        refine = request.refine and replace(request.refine, sampling=SamplingParams())
        inputs = replace(
            request,
            request_id="",
            warnings=(),
            sampling=seedless,
            refine=refine,
            speed=1.0,
            audio=AudioOptions(),
            timeout_s=0.0,
            cache=CacheControl(),
            scheduling=SchedulingParams(),
        )
        return hashlib.blake2b(repr(inputs).encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()

    @contextmanager
    def admit(self, digest: bytes) -> Iterator[TrackedRequest]:
        """Tracks a request while the block runs; a block that ends without an error clears it.

        Raises:
            RequestQuarantined: the request is poisonous.
            AtCapacity: another suspicious request is being retried alone.
        """
        self._forget()
        if self.is_poisonous(digest):
            self.refused += 1
            raise RequestQuarantined(
                f"this request has ended replica after replica and is refused for {DURATION_S / 60:.0f} minutes"
            )
        is_alone = self._deaths.is_suspicious(digest)
        if is_alone:
            if self._retried_alone is not None:
                raise AtCapacity("requests that may end a replica are retried one at a time", retry_after_s=1.0)
            self._retried_alone = digest
        tracked = TrackedRequest(self, digest)
        try:
            yield tracked
            self._deaths.clear(digest)
        finally:
            tracked.has_ended = True
            if is_alone:
                self._retried_alone = None

    def record_death(self, digest: bytes, replica: str, stage: str, began: float) -> None:
        """Records that a call of a request, begun at `began` [s] by this clock, failed because a replica died."""
        self._deaths.record(digest, replica, stage, began=began, now=self._clock())

    def is_poisonous(self, digest: bytes) -> bool:
        """True if a request is refused now."""
        return self._deaths.is_poisonous(digest)

    def _forget(self) -> None:
        self._deaths.forget_before(self._clock() - DURATION_S)
