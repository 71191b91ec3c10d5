"""Payment: what one request for speech costs its caller, from its acceptance to its end.

In:    a caller, a job, the key or the token under which it was paid before
Out:   characters that are charged if it speaks, audio that is reserved and then counted; or 429
Owns:  the charge of one request, until it speaks or ends
Never: a charge for what was not spoken; speech that nobody has paid

A text is paid once. It is spoken without further charge for a repetition of its idempotency key that the cache answers, and for
one continuation of its reply from a later byte than the first. Others cost what a new request does, since audio is made again.

A request that ends before its first audio gives back what it took. If a repetition of its key has begun to speak on that charge
meanwhile, the charge stays. A repetition asks before its first audio whether the charge is still there, and else pays itself.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.types import CacheMode, SynthesisRequest
from serve.access.caller import Caller, PendingCharge, expected_audio_s
from serve.access.idempotency import Idempotency
from serve.errors import ApiError

ALWAYS_MADE = (CacheMode.NO_STORE, CacheMode.REFRESH)
"""of requests whose audio is made again, whoever has paid for it"""


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with an idempotency key."""

    tenant: str
    key: str
    raw: bytes
    """its body as JSON"""


class Payment:
    """What one request takes, and gives back."""

    _ending: ClassVar[set[asyncio.Task[Any]]] = set()
    """claims that are made or given back, whether or not their request has ended"""

    def __init__(self, caller: Caller, idempotency: Idempotency) -> None:
        self.is_repeated: bool | None = None
        """whether its idempotency key came before; None: it has none"""
        self.is_free_rest = False
        """whether it is the one continuation that costs nothing"""
        self._caller = caller
        self._idempotency = idempotency
        self._charge = PendingCharge(caller)
        self._keyed: KeyedRequest | None = None
        self._characters = 0
        self._may_ride = True
        self._rides = False  # on the charge of an equal request
        self._is_spoken = False
        self._noting: asyncio.Task[bool] | None = None  # whether another request had noted its charge
        self._token: str | None = None  # that it continues
        self._continuing: asyncio.Task[bool] | None = None  # whether the continuation is the first one

    @property
    def has_paid(self) -> bool:
        """Whether it speaks on a charge of its own, which pays one continuation of its reply."""
        return not (self.is_free_rest or self._rides)

    async def take(self, request: SynthesisRequest, characters: int) -> None:
        """Charges characters, and reserves the audio of a request.

        Raises:
            ApiError: 429, a quota is used up.
        """
        await self._charge.take(characters, audio_of(request) if self._caller.has_audio_limit else 0.0)

    async def take_once(self, request: SynthesisRequest, characters: int, keyed: KeyedRequest) -> None:
        """Charges characters once for all requests of an idempotency key that the cache may answer.

        Of two that come at the same moment both are charged, and the later one is refunded: neither is spoken unpaid.

        Raises:
            ApiError: 409, the key stands for another body; 429, a quota is used up.
        """
        idempotency, names = self._idempotency, (keyed.tenant, keyed.key, keyed.raw)
        self._keyed, self._characters = keyed, characters
        self._may_ride = request.cache.mode not in ALWAYS_MADE
        self.is_repeated = await idempotency.is_repeated(*names)
        if self.is_repeated and await idempotency.is_charged(*names):
            self._rides = self._may_ride
            await self.take(request, 0 if self._rides else characters)
            return
        try:
            await self.take(request, characters)
        except ApiError:
            if not self.is_repeated:
                await idempotency.release(keyed.tenant, keyed.key)
            raise
        await self._note(keyed)

    async def take_rest(self, request: SynthesisRequest, characters: int, token: str) -> None:
        """Charges for a reply that goes on, unless it is the first continuation that a token of a paid reply is used for.

        Raises:
            ApiError: 429, a quota is used up.
        """
        self._token = token
        self._continuing = self._begin(self._idempotency.claim_continuation(self._caller.id, token))
        self.is_free_rest = await asyncio.shield(self._continuing)
        await self.take(request, 0 if self.is_free_rest else characters)

    async def confirm(self) -> None:
        """Sees before the first audio that somebody has paid for it.

        Raises:
            ApiError: 429, the charge that it would have spoken on was taken back, and the quota has no room for its own.
        """
        keyed = self._keyed
        if keyed is None or not self._rides or await self._idempotency.note_repetition(keyed.tenant, keyed.key, keyed.raw):
            return
        self._rides = False
        await self._charge.take(self._characters)
        await self._note(keyed)

    async def pay_made(self) -> None:
        """Has a repetition pay itself, since the cache lacks a part of its audio.

        Raises:
            ApiError: 429, the quota has no room for it.
        """
        if self._rides:
            self._rides = self._may_ride = False
            await self._charge.take(self._characters)
            if self._is_spoken:
                self._charge.keep()

    def add_audio(self, audio_s: float) -> None:
        """Counts generated audio [s]."""
        self._charge.add(audio_s)

    def end_audio(self) -> None:
        """No more audio is generated: what was reserved beyond it is free at once."""
        self._charge.end_audio()

    def keep(self) -> None:
        """The reply speaks: from now on nothing is given back."""
        self._is_spoken = True
        self._charge.keep()

    def close(self) -> None:
        """Gives back what was taken for nothing. Does not wait."""
        if self._is_spoken or self._noting is self._continuing is None:
            self._charge.close()
        else:
            self._begin(self._give_back())

    async def _note(self, keyed: KeyedRequest) -> None:
        """Remembers the charge of a key; it is given back if another request was charged first."""
        self._noting = self._begin(self._idempotency.note_charge(keyed.tenant, keyed.key, keyed.raw))
        if await asyncio.shield(self._noting):
            self.is_repeated, self._rides = True, self._may_ride
            if self._rides:
                self._charge.give_back()

    async def _give_back(self) -> None:
        idempotency, keyed = self._idempotency, self._keyed
        try:
            if self._token is not None and self._continuing is not None and await self._continuing:
                await idempotency.release_continuation(self._caller.id, self._token)
            if keyed is None or self._noting is None or await self._noting:
                return  # nothing is noted of this charge
            if not await idempotency.take_back_charge(keyed.tenant, keyed.key, keyed.raw):
                self._charge.keep()
        except ApiError:
            pass  # the key stands for another body: nothing is noted either
        finally:
            self._charge.close()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begins what a cancellation of the request must not interrupt."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


def audio_of(request: SynthesisRequest) -> float:
    """Returns about how long the audio of a request will be [s]."""
    silence_ms = sum(passage.silence_ms for passage in request.passages)
    return expected_audio_s(request.text, request.speed) + silence_ms / 1000
