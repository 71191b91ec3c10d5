"""Caller: the client of a request, and what its key is charged.

In:    a key's id, lanes and quota; what a request costs
Out:   Caller, PendingCharge; 401 for a revoked key, 429 for a quota that is used up
Owns:  charges that are neither kept nor given back
Never: HTTP, Ray, keys themselves; a charge that a cancellation loses or leaves behind
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from pipeline.types import Lane
from serve.access.api_keys import Quota
from serve.access.quotas import Charge, LocalQuotas, QuotaDecision, Quotas
from serve.errors import ApiError, ErrorSpec

ANONYMOUS = "anonymous"

MESSAGES = {
    "rate_limited": "this key's requests per second are used up",
    "too_many_concurrent_requests": "this key has reached its number of concurrent requests",
    "quota_exceeded": "this key's quota of characters per day or of audio per minute is used up",
}


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """The client of a request, as the routes see it."""

    id: str = ANONYMOUS
    """id of the key: for logs, fair shares and tenants"""
    lanes: Collection[Lane] = tuple(Lane)
    quota: Quota | None = None
    """None: no limits, nothing is counted"""
    quotas: Quotas = field(default_factory=LocalQuotas)
    is_revoked: Callable[[], bool] = field(default=lambda: False)
    """whether its key has been revoked since it was checked, as it can be while a socket is open"""
    is_operator: bool = False
    """whether it may change what belongs to others: by the scope admin, or on a machine whose service has no keys"""

    def check_key(self) -> None:
        """Checks that the key is still one.

        Raises:
            ApiError: 401
        """
        if self.is_revoked():
            raise invalid_key()

    def check_owner(self, owner: str) -> None:
        """Checks that it may replace or delete a record.

        Args:
            owner: id of the key that made it; empty: a release that kept none.

        Raises:
            ApiError: 403
        """
        if not (self.is_operator or owner == self.id):
            raise ApiError(
                "this belongs to another key; only that key, and keys with the scope admin, may replace or delete it",
                ErrorSpec(403, "permission_error", "not_the_owner", False),
                param="id",
            )

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

    @asynccontextmanager
    async def charged(self, characters: int) -> AsyncIterator["PendingCharge"]:
        """Charges characters, and gives them back at the end of the block unless it has called keep().

        Raises:
            ApiError: as charge_characters().
        """
        charge = PendingCharge(self)
        await charge.take(characters)
        try:
            yield charge
        finally:
            charge.close()

    async def charge_characters(self, characters: int) -> Charge:
        """Charges characters to the key's quota of the day. Returns what can be refunded.

        Raises:
            ApiError: 429, they are more than what is left of it.
        """
        if self.quota is None:
            return Charge(0, 0)
        decision = await self.quotas.charge_characters(self.id, self.quota, characters)
        if decision.refusal:
            raise refused(decision, self.quota, retry_helps=False)
        return Charge(characters, decision.day)

    def refund(self, charge: Charge) -> None:
        """Takes a charge back, unless its day is over."""
        if self.quota is not None:
            self.quotas.refund_characters(self.id, self.quota, charge)

    async def characters_today(self) -> int | None:
        """Returns the characters of the day (UTC) that are charged; None: this caller has no limit of them."""
        if self.quota is None or self.quota.characters_a_day is None:
            return None
        return await self.quotas.characters_today(self.id)

    def record_audio(self, audio_s: float) -> None:
        """Counts audio that was generated against the key's quota per minute [s]."""
        if self.quota is not None:
            self.quotas.record_audio(self.id, self.quota, audio_s)


ANONYMOUS_CALLER = Caller()
OPERATOR_WITHOUT_KEYS = Caller(is_operator=True)


class PendingCharge:
    """Characters of work that is not done yet: kept once it is, else given back."""

    _asked: ClassVar[set[asyncio.Task[Charge]]] = set()
    """questions whose answers may come after their request was cancelled"""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._charge: Charge | None = None

    async def take(self, characters: int) -> None:
        """Charges characters, once. If it is cancelled before the answer is there, they are given back when it comes.

        Raises:
            ApiError: 429, they are more than what is left of the day's quota.
        """
        if self._caller.quota is None:
            return
        question = asyncio.create_task(self._caller.charge_characters(characters))
        self._asked.add(question)
        question.add_done_callback(self._asked.discard)
        try:
            self._charge = await asyncio.shield(question)
        except asyncio.CancelledError:
            question.add_done_callback(self._give_back)
            raise

    def keep(self) -> None:
        """The work is done: from now on nothing is given back."""
        self._charge = None

    def close(self) -> None:
        """Gives back what was not kept. Does not wait."""
        charge, self._charge = self._charge, None
        if charge is not None:
            self._caller.refund(charge)

    def _give_back(self, answer: asyncio.Task[Charge]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._caller.refund(answer.result())


def unauthorised(code: str, message: str) -> ApiError:
    """Returns a refusal with status 401."""
    return ApiError(message, ErrorSpec(401, "authentication_error", code, False), headers={"WWW-Authenticate": "Bearer"})


def invalid_key() -> ApiError:
    """Returns the refusal of a key that is none, or is none any more."""
    return unauthorised("invalid_api_key", "no such key; it may have been revoked")


def refused(decision: QuotaDecision, quota: Quota, *, retry_helps: bool = True) -> ApiError:
    """Returns a refusal with status 429."""
    kind = ErrorSpec(429, "rate_limit_error", decision.refusal, retry_helps, max(decision.retry_after_s, 0.001))
    return ApiError(MESSAGES[decision.refusal], kind, headers=rate_headers(decision, quota))


def rate_headers(decision: QuotaDecision, quota: Quota) -> dict[str, str]:
    """Returns the state of the request rate, in the usual headers and in OpenAI's."""
    if decision.remaining is None:
        return {}
    limit, remaining, reset_s = str(quota.burst), str(max(0, decision.remaining)), decision.reset_s
    return {
        "RateLimit-Limit": limit,
        "RateLimit-Remaining": remaining,
        "RateLimit-Reset": str(max(1, round(reset_s + 0.5))),
        "x-ratelimit-limit-requests": limit,
        "x-ratelimit-remaining-requests": remaining,
        "x-ratelimit-reset-requests": f"{reset_s:.3f}s",
    }
