"""Quotas: how much of its quota a key has used, and whether a request fits into the rest.

In:    a key's id and quota, what a request needs, a clock
Out:   QuotaDecision
Owns:  the counts of this process; shared ones are in serve/access/redis_quotas.py
Never: keys

A rate is kept as one number, the time at which everything taken so far would have been due (GCRA): each request moves it
forward, and it may lie ahead of the clock by the burst. Audio is reserved when a text is accepted, as much as it may need, and
counted as it is made: the speech that crosses the limit is the last one, until the number is within a minute of the clock
again.

Each of n replicas that do not share a count allows an n-th of every limit, and at least one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from serve.access.api_keys import Quota

MINUTE_S = 60.0
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class QuotaDecision:
    """Whether a request fits into a quota."""

    refusal: str = ""
    """error code of the reply; empty: allowed"""
    retry_after_s: float = 0.0
    remaining: int | None = None
    """requests that could follow at once; None if requests have no rate"""
    reset_s: float = 0.0
    """until the whole burst is available again"""
    day: int = 0
    """to which characters were charged, in days since 1970"""


@dataclass(frozen=True, slots=True)
class Charge:
    """Characters that were charged to a key."""

    characters: int
    day: int
    """days since 1970"""
    token: str = ""
    """by which whoever takes the work over can take it back; empty: nobody else can"""


class Quotas(Protocol):
    """Counts what each key uses."""

    @property
    def is_away(self) -> bool:
        """True while the count that replicas share is away, and this replica counts alone."""
        ...

    async def acquire(self, key: str, quota: Quota, permit: str | None) -> QuotaDecision:
        """Takes one request and, with a permit, one stream: both or neither."""
        ...

    async def charge_characters(self, key: str, quota: Quota, characters: int, token: str = "") -> QuotaDecision:
        """Takes characters of the day: all or none.

        Args:
            token: of the Charge that it becomes.
        """
        ...

    async def reserve_audio(self, key: str, quota: Quota, audio_s: float, reservation: str) -> QuotaDecision:
        """Reserves audio that will be generated, unless that of the minute is used up before it."""
        ...

    def release_audio(self, key: str, quota: Quota, audio_s: float, reservation: str) -> None:
        """Ends a reservation of so much; what was generated of it was recorded before. Does not wait."""
        ...

    def refund_characters(self, key: str, quota: Quota, charge: Charge) -> None:
        """Takes a charge back soon, unless its day is over. Does not wait."""
        ...

    def settle_characters(self, key: str, quota: Quota, charge: Charge) -> None:
        """Takes the charge of a process that is gone back, if there is one and nobody has; needs its token. Does not wait."""
        ...

    async def characters_today(self, key: str) -> int:
        """Returns the characters of the day that are charged; none are for a quota without a limit of them."""
        ...

    def record_audio(self, key: str, quota: Quota, audio_s: float) -> None:
        """Counts generated audio soon. Does not wait."""
        ...

    def release(self, key: str, permit: str) -> None:
        """Gives a permit back. Does not wait; does nothing if the permit is not held."""
        ...


@dataclass(slots=True)
class _Used:
    """Consumption of one key."""

    rate_due: float = 0.0
    audio_due: float = 0.0
    day: int = 0
    characters: int = 0
    permits: set[str] = field(default_factory=set)
    reserved: dict[str, float] = field(default_factory=dict)
    """how far each reservation will move audio_due"""


class LocalQuotas:
    """Quotas counted in this process alone."""

    is_away = False

    def __init__(
        self,
        replicas: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            replicas: how many processes share each quota.
            clock: monotonic seconds: setting the time of day does not change a rate.
            wall_clock: seconds since 1970; only for characters per day.
        """
        self._replicas = replicas
        self._clock = clock
        self._wall_clock = wall_clock
        self._keys: dict[str, _Used] = {}

    async def acquire(self, key: str, quota: Quota, permit: str | None) -> QuotaDecision:
        """Takes one request and, with a permit, one stream: both or neither."""
        used, now, share = self._used(key), self._clock(), 1 / max(1, self._replicas())
        decision = self._rate(used, now, quota, share)
        if decision.refusal:
            return decision
        if (over_s := _over(used, now, quota)) is not None:
            return QuotaDecision("quota_exceeded", over_s, decision.remaining, decision.reset_s)
        if permit is not None and quota.streams is not None and len(used.permits) >= portion(quota.streams, share):
            return QuotaDecision("too_many_concurrent_requests", 0.0, decision.remaining, decision.reset_s)
        self.record(key, quota, permit)
        return decision

    def record(self, key: str, quota: Quota, permit: str | None) -> None:
        """Counts a request that the shared count allowed, so that this replica's share is up to date."""
        used, now, share = self._used(key), self._clock(), 1 / max(1, self._replicas())
        if quota.requests_per_s is not None:
            step = 1 / (quota.requests_per_s * share)
            # More than the burst was allowed by other replicas: not counted here.
            used.rate_due = min(max(used.rate_due, now) + step, now + step * portion(quota.burst, share))
        if permit is not None:
            used.permits.add(permit)

    async def charge_characters(self, key: str, quota: Quota, characters: int, token: str = "") -> QuotaDecision:
        """Takes characters of the day: all or none."""
        used, now, share = self._used(key), self._wall_clock(), 1 / max(1, self._replicas())
        limit = quota.characters_a_day
        if limit is not None and self._today(used, now) + characters > portion(limit, share):
            return QuotaDecision("quota_exceeded", DAY_S - now % DAY_S)
        self.record_characters(key, characters)
        return QuotaDecision(day=used.day)

    async def reserve_audio(self, key: str, quota: Quota, audio_s: float, reservation: str) -> QuotaDecision:
        """Reserves audio that will be generated, unless that of the minute is used up before it."""
        if (over_s := _over(self._used(key), self._clock(), quota)) is not None:
            return QuotaDecision("quota_exceeded", over_s)
        self.record_reservation(key, quota, audio_s, reservation)
        return QuotaDecision()

    def record_reservation(self, key: str, quota: Quota, audio_s: float, reservation: str) -> None:
        """Counts a reservation that the shared count allowed."""
        if quota.audio_s_a_minute is not None:
            share = 1 / max(1, self._replicas())
            self._used(key).reserved[reservation] = audio_s * MINUTE_S / (quota.audio_s_a_minute * share)

    def release_audio(self, key: str, quota: Quota, audio_s: float, reservation: str) -> None:
        """Ends a reservation; what was generated of it was recorded before."""
        self._used(key).reserved.pop(reservation, None)

    def refund_characters(self, key: str, quota: Quota, charge: Charge) -> None:
        """Takes a charge back, unless its day is over."""
        used = self._used(key)
        if used.day == charge.day:
            used.characters = max(0, used.characters - charge.characters)

    def settle_characters(self, key: str, quota: Quota, charge: Charge) -> None:
        """Does nothing: what a process has charged is gone with it."""

    async def characters_today(self, key: str) -> int:
        """Returns the characters of the day that this process charged."""
        return self._today(self._used(key), self._wall_clock())

    def record_characters(self, key: str, characters: int) -> None:
        """Counts characters that the shared count allowed."""
        used = self._used(key)
        used.characters = self._today(used, self._wall_clock()) + characters

    def record_audio(self, key: str, quota: Quota, audio_s: float) -> None:
        """Counts generated audio."""
        if quota.audio_s_a_minute is not None:
            used, now, share = self._used(key), self._clock(), 1 / max(1, self._replicas())
            used.audio_due = max(used.audio_due, now) + audio_s * MINUTE_S / (quota.audio_s_a_minute * share)

    def release(self, key: str, permit: str) -> None:
        """Gives a permit back; does nothing if it is not held."""
        self._used(key).permits.discard(permit)

    def streams(self, key: str) -> int:
        """Returns how many permits the key holds."""
        return len(self._used(key).permits)

    def _used(self, key: str) -> _Used:
        return self._keys.setdefault(key, _Used())

    def _rate(self, used: _Used, now: float, quota: Quota, share: float) -> QuotaDecision:
        if quota.requests_per_s is None:
            return QuotaDecision()
        step = 1 / (quota.requests_per_s * share)
        ahead = max(used.rate_due, now) - now
        room = step * portion(quota.burst, share) - ahead
        if room < step * (1 - 1e-9):  # a whole request, but for rounding
            return QuotaDecision("rate_limited", step - room, 0, ahead)
        return QuotaDecision("", 0.0, math.floor(room / step + 1e-9) - 1, ahead + step)

    def _today(self, used: _Used, now: float) -> int:
        today = int(now // DAY_S)  # an earlier day counts as new too: a clock that was set back must not lock a key out
        if used.day != today:
            used.day, used.characters = today, 0
        return used.characters


def _over(used: _Used, now: float, quota: Quota) -> float | None:
    """Returns how long the audio of the minute is used up [s]; None: it is not."""
    over_s = max(0.0, used.audio_due - now) + sum(used.reserved.values()) - MINUTE_S
    return over_s if quota.audio_s_a_minute is not None and over_s >= 0 else None


def today() -> int:
    """Returns the day to which characters are charged, in days since 1970."""
    return int(time.time() // DAY_S)


def day_left_s() -> float:
    """Returns how long the day still lasts [s]."""
    return DAY_S - time.time() % DAY_S


def day_ends_at() -> int:
    """Returns when the characters of the day are counted anew, in seconds since 1970."""
    now = time.time()
    return int(now - now % DAY_S + DAY_S)


def portion(limit: int, share: float) -> int:
    """Returns one replica's part of a limit: at least one."""
    return max(1, math.floor(limit * share + 1e-9))
