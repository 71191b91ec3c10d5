"""Quotas in Redis: one count for all replicas of all nodes.

In:    a key's id and quota, what a request needs
Out:   QuotaDecision
Owns:  a Redis link; the permits this process holds; what it knows of Redis' sums, and what Redis does not know yet
Never: a wait longer than its time limit; unlimited requests while Redis is away; a Redis that may evict: it is the keys' store

Each call is one script, which Redis runs atomically, by its own clock. A permit is a lease: the process that holds it renews
it, and the permits of a process that has died expire after LEASE_S. While Redis is away each replica allows its share
(LocalQuotas, which is kept up to date all the time) of what it knows to be left, and looks every PERIOD_S, with a write,
whether Redis takes writes again, so that requests do not wait for it. Then it tells what it counted alone.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pipeline.store.redis_link import RedisLink
from serve.access.api_keys import Quota
from serve.access.quota_reports import Known, Report
from serve.access.quota_scripts import BORN, ENTER, NUMBERS, READ, REPORT, RESERVE, WRITE
from serve.access.quotas import MINUTE_S, Charge, LocalQuotas, QuotaDecision, day_left_s, today

LOG = logging.getLogger("ray.serve.chattts")

ANSWER_TIMEOUT_S = 0.5
LEASE_S = 15.0
PERIOD_S = 1.0
"""how often leases are renewed and audio is reported"""
ALONE = "Redis {}; each replica allows its share of a quota"
BORN_NAME = "chattts:quotas:born"


class RedisQuotas:
    """Quotas counted in Redis, or by this replica's share of each while Redis is away."""

    def __init__(self, url: str, local: LocalQuotas, *, lease_s: float = LEASE_S) -> None:
        self._link = RedisLink(url, connect_timeout_s=ANSWER_TIMEOUT_S, answer_timeout_s=ANSWER_TIMEOUT_S, on_trouble=_warn)
        self._redis = self._link.client
        self._enter = self._redis.register_script(ENTER)
        self._write = self._redis.register_script(WRITE)
        self._reserve = self._redis.register_script(RESERVE)
        self._read = self._redis.register_script(READ)
        self._report = self._redis.register_script(REPORT)
        self._look = self._redis.register_script(BORN)
        self._local = local
        self._lease_s = lease_s
        self._permits: dict[str, set[str]] = {}
        self._known: dict[str, Known] = {}
        self._unsent: dict[str, Report] = {}  # grows until it is sent
        self._unanswered: dict[str, Report] = {}  # without an answer so far
        self._born: object = None
        self._leaving: set[asyncio.Task[Any]] = set()

    @property
    def is_away(self) -> bool:
        """True while Redis does not answer or refuses; `renew` finds it again."""
        return self._link.is_away

    async def acquire(self, key: str, quota: Quota, permit: str | None) -> QuotaDecision:
        """Takes one request and, with a permit, one stream: both or neither."""
        if permit is not None:
            # Before the call: if its answer is lost, the permit must still be renewed and given back.
            self._permits.setdefault(key, set()).add(permit)
        step = 0.0 if quota.requests_per_s is None else 1 / quota.requests_per_s
        limited, known = int(quota.audio_s_a_minute is not None), self._of(key)
        values: list[Any] = [step, quota.burst, limited, quota.streams or 0, permit or "", self._lease_s, known.audio_ahead_s]
        answer = await self._ask(lambda: self._enter(_names(key), values))
        if answer is None:
            over_s = known.audio_ahead_s - MINUTE_S if limited else -1.0
            alone = QuotaDecision("quota_exceeded", over_s) if over_s >= 0 else None
            decision = alone or await self._local.acquire(key, quota, permit)
        else:
            refusal, retry_s, remaining, reset_s, *audio = answer
            decision = QuotaDecision(refusal.decode(), float(retry_s), None if remaining < 0 else remaining, float(reset_s))
            known.learn_audio(float(audio[0]) if audio else 0.0)
            if not decision.refusal:
                self._local.record(key, quota, permit)
        if decision.refusal and permit is not None:
            self._drop(key, permit)
        return decision

    async def charge_characters(self, key: str, quota: Quota, characters: int, token: str = "") -> QuotaDecision:
        """Takes characters of the day: all or none. Whoever leaves meanwhile has taken none."""
        limit = quota.characters_a_day
        if limit is None:
            return QuotaDecision()
        token, was_away = token or secrets.token_hex(8), self.is_away
        values = [*self._of(key).sums, characters, limit, token]
        try:
            answer = await self._ask(lambda: self._write(_names(key), values))
        except asyncio.CancelledError:
            self._settle(key, token, today(), characters, refund=characters)
            raise
        if answer is None:
            return await self._charge_alone(key, quota, characters, "" if was_away else token)
        refusal, retry_s, *sums = answer
        self._of(key).learn(*sums)
        decision = QuotaDecision(refusal.decode(), float(retry_s), day=int(sums[0]))
        if not decision.refusal:
            self._local.record_characters(key, characters)
        return decision

    async def reserve_audio(self, key: str, quota: Quota, audio_s: float, reservation: str) -> QuotaDecision:
        """Reserves audio that will be generated, unless that of the minute is used up before it."""
        if quota.audio_s_a_minute is None:
            return QuotaDecision()
        known, moves_s = self._of(key), audio_s * MINUTE_S / quota.audio_s_a_minute
        untold_s = sum(report.audio_s for report in (self._unsent.get(key), self._unanswered.get(key)) if report is not None)
        values: list[Any] = [known.audio_ahead_s, untold_s, _reserved(reservation, moves_s), moves_s + MINUTE_S]
        answer = await self._ask(lambda: self._reserve(_names(key), values))
        if answer is None:
            over_s = known.audio_ahead_s + untold_s - MINUTE_S
            alone = QuotaDecision("quota_exceeded", over_s) if over_s >= 0 else None
            return alone or await self._local.reserve_audio(key, quota, audio_s, reservation)
        over_s = float(answer[0])
        known.learn_audio(float(answer[1]))
        if over_s >= 0:
            return QuotaDecision("quota_exceeded", over_s)
        self._local.record_reservation(key, quota, audio_s, reservation)
        return QuotaDecision()

    def release_audio(self, key: str, quota: Quota, audio_s: float, reservation: str) -> None:
        """Ends a reservation, once Redis knows what was generated of it."""
        if quota.audio_s_a_minute is None:
            return
        self._local.release_audio(key, quota, audio_s, reservation)
        member = _reserved(reservation, audio_s * MINUTE_S / quota.audio_s_a_minute)

        async def end() -> None:
            await self._tell_of(key)
            await self._ask(lambda: self._redis.zrem(_name(key, "reserved"), member))

        self._tell(end)

    def refund_characters(self, key: str, quota: Quota, charge: Charge) -> None:
        """Takes a charge back, unless its day is over: at once, or when Redis is back."""
        if quota.characters_a_day is not None:
            self._local.refund_characters(key, quota, charge)
            report = self._unsent.setdefault(key, Report())
            if charge.token:
                report.take_back(charge.token, charge.day, charge.characters)
            else:
                report.add(charge.day, -charge.characters)
            self._tell(lambda: self._tell_of(key))

    def settle_characters(self, key: str, quota: Quota, charge: Charge) -> None:
        """Takes a charge of another process back, whether or not it was made; told for TOLD_S after it, it counts once."""
        if quota.characters_a_day is not None:
            self._settle(key, charge.token, charge.day, charge.characters, refund=charge.characters)
            self._tell(lambda: self._tell_of(key))

    async def characters_today(self, key: str) -> int:
        """Returns the characters of the day that all replicas charged, as far as this one knows."""
        answer = await self._ask(lambda: self._read(_names(key), self._of(key).sums))
        if answer is not None:
            self._of(key).learn(*answer)
        return self._used_today(key)

    def record_audio(self, key: str, quota: Quota, audio_s: float) -> None:
        """Counts generated audio; reported to Redis by the next round of follow()."""
        self._local.record_audio(key, quota, audio_s)
        if quota.audio_s_a_minute is not None:
            self._unsent.setdefault(key, Report()).audio_s += audio_s * MINUTE_S / quota.audio_s_a_minute

    def release(self, key: str, permit: str) -> None:
        """Gives a permit back; does nothing if it is not held."""
        self._local.release(key, permit)
        self._drop(key, permit)
        self._tell(lambda: self._ask(lambda: self._redis.zrem(_name(key, "streams"), permit)))

    async def follow(self, problems: dict[str, str] | None = None) -> None:
        """Renews leases and reports audio every PERIOD_S; notices when Redis is away and when it is back.

        Args:
            problems: gets, under `quotas`, why they are not counted together now.
        """
        problems = {} if problems is None else problems
        while True:
            try:
                await self.renew()
            except Exception:
                LOG.exception("keys: their quotas could not be reported")
            if self.is_away:
                problems["quotas"] = ALONE.format(self._link.trouble)
            else:
                problems.pop("quotas", None)
            await asyncio.sleep(PERIOD_S)

    async def renew(self) -> None:
        """Runs one round of follow(). Stops at the first call without an answer: the others would wait as long."""
        was_away = self.is_away
        born = await self._ask(lambda: self._look([BORN_NAME], [secrets.token_hex(8)]), is_probe=True)
        if born is None:
            return
        if was_away and not self.is_away:
            LOG.info("keys: the store is back; quotas are counted together again")
        has_lost_all, self._born = self._born not in (None, born), born
        if has_lost_all:
            LOG.error("keys: Redis has lost the counts of quotas; it is told what this replica knows of them")
        for key in {*self._permits, *self._unsent, *self._unanswered, *(self._known if has_lost_all else ())}:
            if not await self._tell_of(key):
                return

    async def forget(self, key: str) -> None:
        """Removes what Redis has of a key that nobody has."""
        await self._ask(lambda: self._redis.unlink(*_names(key)))

    async def close(self) -> None:
        """Gives back the permits this process holds and closes its connections."""
        for key, permits in list(self._permits.items()):
            for permit in list(permits):
                self.release(key, permit)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._link.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _tell_of(self, key: str) -> bool:
        """Tells Redis what it does not know of a key, and renews its permits. Returns False if there is no answer."""
        unanswered = self._unanswered.get(key)
        if unanswered is not None and not await self._send(key, unanswered):
            return False
        if key in self._unanswered or (unanswered is not None and key not in self._unsent):
            return True  # another call is telling the rest, or there is none
        return await self._send(key, self._unsent.pop(key, Report()))

    async def _send(self, key: str, report: Report) -> bool:
        if not report.is_empty:
            self._unanswered[key] = report
        known = self._of(key)
        values = [*known.sums, self._lease_s, report.token, report.audio_s, known.audio_ahead_s, *report.values]
        answer = await self._ask(partial(self._report, _names(key), [*values, *self._permits.get(key, ())]))
        if answer is None:
            return False
        known.learn_audio(float(answer[0]))
        known.learn(*answer[1:])
        if self._unanswered.get(key) is report:
            del self._unanswered[key]
        return True

    async def _charge_alone(self, key: str, quota: Quota, characters: int, token: str) -> QuotaDecision:
        """Takes characters of this replica's share, and remembers to tell Redis.

        Args:
            token: of a charge that Redis may have counted; empty: it was not sent.
        """
        limit, day = quota.characters_a_day, today()
        if limit is not None and self._used_today(key) + characters > limit:
            decision = QuotaDecision("quota_exceeded", day_left_s())
        else:
            decision = await self._local.charge_characters(key, quota, characters)
        if token:
            self._settle(key, token, day, characters, refund=characters if decision.refusal else 0)
        elif not decision.refusal:
            self._unsent.setdefault(key, Report()).add(day, characters)
        return decision

    def _settle(self, key: str, token: str, day: int, characters: int, *, refund: int) -> None:
        """Makes sure that a charge without an answer counts once, and gives back what is not wanted of it."""
        report = self._unsent.setdefault(key, Report())
        report.charges[token, day] = characters
        if refund:
            report.take_back(token, day, refund)

    def _used_today(self, key: str) -> int:
        """Returns what this replica knows to be charged of the day."""
        known, now = self._of(key), today()
        untold = sum(
            characters
            for report in (self._unsent.get(key), self._unanswered.get(key))
            if report is not None
            for (_, day), characters in report.charges.items()
            if day == now
        )
        return max(0, untold + (known.charged - known.refunded if known.day == now else 0))

    def _of(self, key: str) -> Known:
        return self._known.setdefault(key, Known())

    def _drop(self, key: str, permit: str) -> None:
        permits = self._permits.get(key, set())
        permits.discard(permit)
        if not permits:
            self._permits.pop(key, None)

    def _tell(self, question: Callable[[], Awaitable[Any]]) -> None:
        """Sends what needs no answer, soon."""
        task = asyncio.ensure_future(question())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _ask(self, question: Callable[[], Awaitable[Any]], *, is_probe: bool = False) -> Any:
        """Returns the answer, True for Redis' nil, or None if Redis is away."""

        async def answered() -> Any:
            answer = await question()
            return True if answer is None else answer

        return await self._link.ask(answered, timeout_s=2 * ANSWER_TIMEOUT_S, is_probe=is_probe)


def _warn(reason: str) -> None:
    LOG.warning("keys: %s", ALONE.format(reason))


def _name(key: str, part: str) -> str:
    """Returns the name of one of a key's numbers; the braces keep them in one slot of a cluster."""
    return f"{{chattts:quota:{key}}}:{part}"


def _reserved(reservation: str, moves_s: float) -> str:
    return f"{reservation}:{moves_s:.3f}"


def _names(key: str) -> list[str]:
    return [_name(key, part) for part in NUMBERS]
