"""Quarantine: a request that ends replicas is kept from ending more of them.

In:    requests on their way to the model; which of them were inside a replica when it died
Out:   leave to go on, or RequestQuarantined
Owns:  keyed digests of requests that saw a replica die, for as long as config says; no text
Never: Ray; a digest that means anything outside this process

Everybody who was inside a replica when it died is a suspect. Who was inside two of one stage, one after the other, is guilty if
nobody else was inside both; otherwise those who were are let in one at a time: one that is spoken to its end is cleared, one
that sees a third die is guilty. Without that, two dead replicas would shut out everything that was being spoken by them.

One after the other: a machine that dies takes a replica of each stage with it, or several of one, and a request may be inside
them all. Of one stage, those deaths count once: its work in the second was begun before the end of the first was known, and so
was no second try. A machine's death counts at all because a request may be the cause: one that fills the memory of a container
ends all that runs in it.
"""

import hashlib
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pipeline.errors import AtCapacity, RequestQuarantined
from pipeline.types import AudioChunk, AudioOptions, CacheOrder, SamplingParams, SchedulingParams, SynthesisRequest
from serve.config.policies import QuarantineConfig

Stream = Callable[[SynthesisRequest], AsyncGenerator[AudioChunk, None]]

T = TypeVar("T")

DEADLY = 2  # replicas of one stage a request may end, one after the other
MOST_DEATHS = 256  # remembered at once


@dataclass(slots=True)
class Death:
    """A replica that died, and who was inside."""

    stage: str
    replica: str
    at: float
    suspects: dict[bytes, tuple[float, float]] = field(default_factory=dict)
    """request -> when it first knew, and when the last of its calls that saw it was begun"""


class Case:
    """One request under way."""

    def __init__(self, quarantine: "Quarantine", digest: bytes) -> None:
        self.heard = False
        """whether audio of it has left; from then on nothing is begun again"""
        self._quarantine = quarantine
        self._digest = digest

    def saw_death_of(self, replica: str, stage: str, began: float) -> None:
        """See Quarantine.note."""
        self._quarantine.note(self._digest, replica, stage, began)

    @property
    def is_deadly(self) -> bool:
        """Whether it would be refused if it came now: nothing of it is tried again."""
        return self._quarantine.is_guilty(self._digest)


CASE: ContextVar[Case | None] = ContextVar("chattts_case", default=None)
"""the request the running task works for"""


class Quarantine:
    """Of one ingress replica."""

    def __init__(self, config: QuarantineConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0  # since the replica started
        self._memory_s = config.duration_s
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._deaths: deque[Death] = deque(maxlen=MOST_DEATHS)
        self._on_trial: bytes | None = None

    @property
    def held(self) -> int:
        """Requests that would be refused now."""
        self._forget()
        suspects = set().union(*(death.suspects for death in self._deaths))
        return sum(self.is_guilty(digest) for digest in suspects)

    async def stream(self, inner: Stream, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        """What `inner` makes of the request, under observation.

        Raises:
            RequestQuarantined
        """
        with self.enter(self.digest(request)) as case:
            CASE.set(case)  # not taken back: a task works for one request, and a generator may end in another task
            async with aclosing(inner(request)) as chunks:
                async for chunk in chunks:
                    case.heard = case.heard or len(chunk.samples) > 0
                    yield chunk

    async def answer(self, inner: Callable[[SynthesisRequest], Awaitable[T]], request: SynthesisRequest) -> T:
        """The same for work that is not spoken."""
        with self.enter(self.digest(request)) as case:
            CASE.set(case)
            return await inner(request)

    def summary(self) -> dict[str, int]:
        """For people and dashboards."""
        return {"held": self.held, "refused": self.refused}

    def digest(self, request: SynthesisRequest) -> bytes:
        """Of all that reaches the model but the seed: a client's second try has another one, and is no less deadly."""
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
            cache=CacheOrder(),
            scheduling=SchedulingParams(),
        )
        return hashlib.blake2b(repr(inputs).encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()

    @contextmanager
    def enter(self, digest: bytes) -> Iterator[Case]:
        """A request under way for as long as the block runs; a block that ends well clears it.

        Raises:
            RequestQuarantined: it has ended two replicas.
            AtCapacity: another suspect is being tried.
        """
        self._forget()
        if self.is_guilty(digest):
            self.refused += 1
            raise RequestQuarantined(
                "this request has ended replica after replica and is refused for a time (quarantine.duration_s)"
            )
        tried = any(ended(digest, deaths) >= DEADLY for deaths in self._seen(digest))
        if tried:
            if self._on_trial is not None:
                raise AtCapacity("requests that may end a replica are spoken one at a time", retry_after_s=1.0)
            self._on_trial = digest
        try:
            yield Case(self, digest)
            self._clear(digest)
        finally:
            if tried:
                self._on_trial = None

    def note(self, digest: bytes, replica: str, stage: str, began: float) -> None:
        """A request was inside a replica of a stage when that died.

        Args:
            began: when the call that failed of it was begun, by the clock of this quarantine.
        """
        now = self._clock()
        death = next((known for known in self._deaths if known.replica == replica), None)
        if death is None:
            death = Death(stage, replica, now)
            self._deaths.append(death)
        knew, last_began = death.suspects.get(digest, (now, began))
        death.suspects[digest] = (knew, max(last_began, began))

    def is_guilty(self, digest: bytes) -> bool:
        """Whether a request is refused."""
        return any(is_guilty_of(digest, deaths) for deaths in self._seen(digest))

    def _seen(self, digest: bytes) -> Iterable[list[Death]]:
        """The deaths a request saw, those of each stage for themselves."""
        stages: dict[str, list[Death]] = {}
        for death in self._deaths:
            if digest in death.suspects:
                stages.setdefault(death.stage, []).append(death)
        return stages.values()

    def _clear(self, digest: bytes) -> None:
        for death in self._deaths:
            death.suspects.pop(digest, None)

    def _forget(self) -> None:
        now = self._clock()
        while self._deaths and now - self._deaths[0].at > self._memory_s:
            self._deaths.popleft()


def ended(digest: bytes, deaths: Iterable[Death]) -> int:
    """How many of the deaths a request saw came one after the other: each in work begun when the one before was known.

    |--A--|            B was begun before the end of A was known, C after it: A and C, two
      |-----B-----|
            |---C---|
    """
    count, known = 0, -math.inf
    for knew, began in sorted(death.suspects[digest] for death in deaths):
        if began >= known:
            count, known = count + 1, knew
    return count


def is_guilty_of(digest: bytes, deaths: list[Death]) -> bool:
    """Whether a request has ended replicas of one stage, given those it saw die."""
    count = ended(digest, deaths)
    if count != DEADLY:
        return count > DEADLY
    others = set().union(*(death.suspects for death in deaths)) - {digest}
    return all(ended(digest, [death for death in deaths if other in death.suspects]) < DEADLY for other in others)
