"""Quarantine: a request that ends replicas is kept from ending more of them.

In:    requests on their way to the model; which of them were inside a replica when it died
Out:   leave to go on, or RequestQuarantined
Owns:  keyed digests of requests that saw a replica die, for as long as config says; no text
Never: Ray; a digest that means anything outside this process

Everybody who was inside a replica when it died is a suspect. Who was inside two is guilty if nobody else was inside both;
otherwise those who were are let in one at a time: one that is spoken to its end is cleared, one that sees a third die is
guilty. Without that, two dead replicas would shut out everything that was being spoken by them.
"""

import hashlib
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pydantic import Field

from pipeline.config import StrictModel
from pipeline.errors import AtCapacity, RequestQuarantined
from pipeline.types import AudioChunk, AudioOptions, CacheOrder, Claim, SamplingParams, SynthesisRequest

Stream = Callable[[SynthesisRequest], AsyncGenerator[AudioChunk, None]]

T = TypeVar("T")

DEADLY = 2  # replicas a request may end
MOST_DEATHS = 256  # remembered at once
UNNAMED_DEATH_S = 1.0  # deaths of replicas nobody could name: one, if they are this close together


class QuarantineConfig(StrictModel):
    """What becomes of requests that end replicas."""

    memory_s: float = Field(
        600.0, gt=0, le=86_400, description="a request that has ended two replicas is refused for [s], and a suspect remembered"
    )


@dataclass(slots=True)
class Death:
    """A replica that died, and who was inside."""

    replica: str
    at: float
    suspects: set[bytes] = field(default_factory=set)


class Case:
    """One request under way."""

    def __init__(self, quarantine: "Quarantine", digest: bytes) -> None:
        self.heard = False
        """whether audio of it has left; from then on nothing is begun again"""
        self._quarantine = quarantine
        self._digest = digest

    def saw_death_of(self, replica: str | None) -> None:
        """A replica that worked for this request has died."""
        self._quarantine.note(self._digest, replica)


CASE: ContextVar[Case | None] = ContextVar("chattts_case", default=None)
"""the request the running task works for"""


class Quarantine:
    """Of one ingress replica."""

    def __init__(self, config: QuarantineConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0  # since the replica started
        self._memory_s = config.memory_s
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._deaths: deque[Death] = deque(maxlen=MOST_DEATHS)
        self._on_trial: bytes | None = None

    @property
    def held(self) -> int:
        """Requests that would be refused now."""
        self._forget()
        suspects = set().union(*(death.suspects for death in self._deaths))
        return sum(self._is_guilty(digest) for digest in suspects)

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

    def shown(self) -> dict[str, int]:
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
            claim=Claim(),
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
        if self._is_guilty(digest):
            self.refused += 1
            raise RequestQuarantined(
                "this request has ended replica after replica and is refused for a time (quarantine.memory_s)"
            )
        tried = len(self._deaths_with(digest)) >= DEADLY
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

    def note(self, digest: bytes, replica: str | None) -> None:
        """A request was inside a replica that has died; None: nobody knows which one."""
        now = self._clock()
        for death in self._deaths:
            if death.replica == (replica or "") and (replica or now - death.at < UNNAMED_DEATH_S):
                death.suspects.add(digest)
                return
        self._deaths.append(Death(replica or "", now, {digest}))

    def _is_guilty(self, digest: bytes) -> bool:
        deaths = self._deaths_with(digest)
        if len(deaths) < DEADLY:
            return False
        return len(deaths) > DEADLY or set.intersection(*(death.suspects for death in deaths)) == {digest}

    def _deaths_with(self, digest: bytes) -> list[Death]:
        return [death for death in self._deaths if digest in death.suspects]

    def _clear(self, digest: bytes) -> None:
        for death in self._deaths:
            death.suspects.discard(digest)

    def _forget(self) -> None:
        now = self._clock()
        while self._deaths and now - self._deaths[0].at > self._memory_s:
            self._deaths.popleft()
