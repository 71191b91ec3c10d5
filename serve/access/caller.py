"""Caller: the client of a request, what its key still allows it, and what it is charged.

In:    a key's id, lanes and quota; what a request costs
Out:   Caller, PendingCharge; 401 for a revoked key, 429 for a quota that is used up
Owns:  charges that are neither kept nor given back
Never: keys themselves; a charge or a stream that a cancellation loses or leaves behind

Whatever is spoken asks here: enter() takes one request of the rate and one stream, charged() the characters of the day and the
audio of the minute. A request of HTTP and the opening of a socket enter before they are read, which is their Entrance. Their
first speech uses it; each further one of a socket or a batch enters anew.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from pipeline.ewma import Ewma
from pipeline.store.ownership import Writer
from pipeline.types import Lane
from serve.access.api_keys import Quota
from serve.access.entrance import Entrance, Release
from serve.access.quotas import Charge, LocalQuotas, QuotaDecision, Quotas
from serve.access.refusals import invalid_key, refused
from serve.errors import ApiError, ErrorSpec, bad_request

ANONYMOUS = "anonymous"
EWMA_WEIGHT = 0.2  # of the newest stream in the mean duration
FIRST_DURATION_S = 2.0  # until the first stream has ended
PATIENCE_S = 5.0
"""for which a further speech of a socket or a batch waits for the rate of its key before it is refused"""

LETTERS_PER_S = 14.0

UNLIMITED = Quota(requests_per_s=None, streams=None, characters_a_day=None)


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """The client of a request. Its id is the tenant of fair shares and cache entries."""

    id: str = ANONYMOUS
    """id of the key: for logs, fair shares and tenants"""
    lanes: Collection[Lane] = tuple(Lane)
    quota: Quota | None = None
    """None: no limits, nothing is counted"""
    quotas: Quotas = field(default_factory=LocalQuotas)
    is_revoked: Callable[[], bool] = field(default=lambda: False)
    """whether its key has been revoked since it was checked, as it can be while a socket is open"""
    watch: Callable[[Callable[[], object]], Release] = field(default=lambda notify: lambda: None)
    """has a function called, in any thread, when the key is revoked; returns what ends that"""
    is_operator: bool = False
    """whether it may change what belongs to others: by the scope admin, or on a machine whose service has no keys"""
    mean_stream_s: Ewma = field(default_factory=lambda: Ewma(EWMA_WEIGHT, FIRST_DURATION_S))
    """how long the streams of all keys last [s]"""
    entrance: Entrance | None = None
    """how its request or socket was let in; None: it was not asked yet"""

    def check_key(self) -> None:
        """Checks that the key is still one.

        Raises:
            ApiError: 401
        """
        if self.is_revoked():
            raise invalid_key()

    @property
    def writer(self) -> Writer:
        """As whom it stores what all keys use."""
        return Writer(self.id, self.is_operator)

    @contextmanager
    def wakes(self, event: asyncio.Event) -> Iterator[None]:
        """Sets an event of the running loop if the key is revoked while the block runs."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(event.set)

        end = self.watch(wake)
        try:
            yield
        finally:
            end()

    def lane(self, requested: str | None) -> Lane:
        """Returns the lane of a request: the requested one, else standard, else the most urgent one the key may use.

        Raises:
            ApiError: 403, the key may not use the requested lane.
        """
        if requested is None:
            return Lane.STANDARD if Lane.STANDARD in self.lanes else next(lane for lane in Lane if lane in self.lanes)
        if requested not in self.lanes:
            raise ApiError(
                f"key {self.id} may not use this lane; it may use {', '.join(self.lanes)}",
                ErrorSpec(403, "permission_error", "lane_not_allowed", False),
                param="priority",
            )
        return Lane(requested)

    async def acquire(self, permit: str | None) -> QuotaDecision:
        """Takes one request of the rate and, with a permit, one stream: both or neither.

        Raises:
            ApiError: 429, the rate, the streams or the audio of the minute are used up.
        """
        quota = self.quota or UNLIMITED
        if permit is None and quota.audio_s_a_minute is not None:
            quota = quota.model_copy(update={"audio_s_a_minute": None})  # it does not speak, or charged() asks for it
        decision = await self.quotas.acquire(self.id, quota, permit)
        if decision.refusal == "too_many_concurrent_requests":
            decision = replace(decision, retry_after_s=self.mean_stream_s.value / (quota.streams or 1))
        if decision.refusal:
            raise refused(decision, quota)
        return decision

    async def enter(self) -> Release:
        """Takes one request of the rate and one stream for a speech. Returns what gives the stream back.

        A speech of a socket or a batch that gets no stream of its own waits until the one of its entrance is free, and a short
        while for the rate.

        Raises:
            ApiError: as acquire().
        """
        entrance, patient_until = self.entrance, asyncio.get_running_loop().time() + PATIENCE_S
        if self.quota is None:
            return lambda: None
        if entrance is not None and entrance.is_new:
            return entrance.occupy()
        while True:
            if entrance is not None and entrance.has_free_stream:
                permit, release = None, entrance.occupy()
            else:
                permit = secrets.token_hex(8)
                release = partial(self.quotas.release, self.id, permit)
            try:
                await self.acquire(permit)
                return release
            except ApiError as refusal:
                release()
                if entrance is None or not await entrance.has_waited(refusal, patient_until):
                    raise
            except BaseException:
                release()
                raise

    @asynccontextmanager
    async def charged(self, characters: int, audio_s: float = 0.0, token: str = "") -> AsyncIterator["PendingCharge"]:
        """Charges characters, and gives them back at the end of the block unless it has called keep().

        Args:
            audio_s: how much will be generated, about [s]; what is, is counted by add().
            token: by which settle() finds the charge, if this process does not come to the end of the block.

        Raises:
            ApiError: as PendingCharge.take().
        """
        charge = PendingCharge(self, token)
        await charge.take(characters, audio_s)
        try:
            yield charge
        finally:
            charge.close()

    async def charge_characters(self, characters: int, token: str = "") -> Charge:
        """Charges characters to the key's quota of the day. Returns what can be refunded.

        Raises:
            ApiError: 413, they are more than one text of this key may have; 429, more than what is left of the day.
        """
        if self.quota is None:
            return Charge(0, 0)
        longest = self.quota.characters_a_request
        if longest is not None and characters > longest:
            message = f"this key's texts have at most {longest} characters (characters_a_request), this one has {characters}"
            raise bad_request("input_too_long", message, status=413)
        decision = await self.quotas.charge_characters(self.id, self.quota, characters, token)
        if decision.refusal:
            raise refused(decision, self.quota, retry_helps=False)
        return Charge(characters, decision.day, token)

    async def reserve_audio(self, audio_s: float) -> Release:
        """Reserves audio of the key's minute. Returns what ends the reservation.

        Raises:
            ApiError: 429, that of the minute is used up.
        """
        quota, reservation = self.quota or UNLIMITED, secrets.token_hex(8)
        release = partial(self.quotas.release_audio, self.id, quota, audio_s, reservation)
        decision = await self.quotas.reserve_audio(self.id, quota, audio_s, reservation)
        if decision.refusal:
            release()  # it may have been counted, if its answer was lost
            raise refused(decision, quota)
        return release

    def refund(self, charge: Charge) -> None:
        """Takes a charge back, unless its day is over."""
        if self.quota is not None:
            self.quotas.refund_characters(self.id, self.quota, charge)

    def settle(self, charge: Charge) -> None:
        """Takes back what another process may have charged by a token before it died."""
        if self.quota is not None:
            self.quotas.settle_characters(self.id, self.quota, charge)

    async def characters_today(self) -> int | None:
        """Returns the characters of the day (UTC) that are charged; None: this caller has no limit of them."""
        if self.quota is None or self.quota.characters_a_day is None:
            return None
        return await self.quotas.characters_today(self.id)

    @property
    def has_audio_limit(self) -> bool:
        """True if the audio of a minute is limited."""
        return self.quota is not None and self.quota.audio_s_a_minute is not None

    def record_audio(self, audio_s: float) -> None:
        """Counts audio that was generated against the key's quota per minute [s]."""
        if self.quota is not None:
            self.quotas.record_audio(self.id, self.quota, audio_s)


ANONYMOUS_CALLER = Caller()
OPERATOR_WITHOUT_KEYS = Caller(is_operator=True)


class PendingCharge:
    """Characters and audio of work that is not done yet: kept once it is, else given back."""

    _questions: ClassVar[set[asyncio.Task[None]]] = set()
    """questions whose answers may come after their request was cancelled"""

    def __init__(self, caller: Caller, token: str = "") -> None:
        self._caller = caller
        self._token = token
        self._charges: list[Charge] = []
        self._release: Release | None = None  # of the audio that is reserved
        self._reserved_s = 0.0
        self._generated_s = 0.0

    async def take(self, characters: int, audio_s: float = 0.0) -> None:
        """Charges characters and reserves audio. If it is cancelled before the answers are there, both are given back then.

        Raises:
            ApiError: 429, they are more than what is left of the quotas.
        """
        if self._caller.quota is None:
            return
        question = asyncio.create_task(self._ask(characters, audio_s))
        self._questions.add(question)
        question.add_done_callback(self._questions.discard)
        try:
            await asyncio.shield(question)
        except asyncio.CancelledError:
            question.add_done_callback(self._come_late)
            raise

    def add(self, audio_s: float) -> None:
        """Counts generated audio [s]: that which was reserved at its end, what exceeds it at once."""
        above_s = max(self._reserved_s, self._generated_s)
        self._generated_s += audio_s
        if self._generated_s > above_s:
            self._caller.record_audio(self._generated_s - above_s)

    def keep(self) -> None:
        """The work is done: from now on its characters are not given back."""
        self._charges.clear()

    def give_back(self) -> None:
        """Gives the characters back that were not kept. Does not wait."""
        while self._charges:
            self._caller.refund(self._charges.pop())

    def end_audio(self) -> None:
        """Counts what was generated of the reserved audio; the rest is free. Does not wait."""
        release, self._release = self._release, None
        if release is not None:
            if self._generated_s:
                self._caller.record_audio(min(self._generated_s, self._reserved_s))
            release()
            self._reserved_s = 0.0

    def close(self) -> None:
        """Gives back what was not kept, and audio that was not generated. Does not wait."""
        self.give_back()
        self.end_audio()

    async def _ask(self, characters: int, audio_s: float) -> None:
        if characters:
            self._charges.append(await self._caller.charge_characters(characters, self._token))
        if audio_s and self._caller.has_audio_limit:
            try:
                self._release = await self._caller.reserve_audio(audio_s)
            except ApiError:
                self.give_back()
                raise
            self._reserved_s = audio_s

    def _come_late(self, answers: asyncio.Task[None]) -> None:
        if not answers.cancelled():
            answers.exception()  # nobody else asks for it
        self.close()


def expected_audio_s(text: str, speed: float) -> float:
    """Returns about how long a text will be [s]; a Chinese syllable has three bytes and takes as long as three letters."""
    return len(text.encode()) / LETTERS_PER_S / speed
