"""Quotas in Redis: one count for all replicas of all nodes.

In:    a key's id and quota, what a request needs
Out:   QuotaDecision
Owns:  a Redis link; the permits this process holds, and audio it has not reported yet
Never: a wait longer than its time limit; unlimited requests while Redis is away

Each call is one script, which Redis runs atomically, by its own clock. A permit is a lease: the process that holds it renews
it, and the permits of a process that has died expire after LEASE_S. While Redis is away each replica allows its share
(LocalQuotas, which is kept up to date all the time) and tries Redis again every PERIOD_S, so that requests do not wait for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pipeline.store.redis_link import RedisLink
from serve.access.api_keys import Quota
from serve.access.quotas import MINUTE_S, Charge, LocalQuotas, QuotaDecision

LOG = logging.getLogger("ray.serve.chattts")

ANSWER_TIMEOUT_S = 0.5
LEASE_S = 15.0
PERIOD_S = 1.0
"""how often leases are renewed and audio is reported"""

NUMBERS = ("clock", "rate", "audio", "streams")
# KEYS of one key's numbers, the same for both scripts below: clock, rate, audio, streams. Redis' clock is the time of day and
# may be set back: everything due is then moved back as well, or a key would wait for the old time to come again.
NOW = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local back = tonumber(redis.call('GET', KEYS[1]) or '0') - now
if back > 0 then
  for each = 2, 3 do
    local due = redis.call('GET', KEYS[each])
    if due then redis.call('SET', KEYS[each], string.format('%.6f', due - back), 'KEEPTTL') end
  end
  for _, permit in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do redis.call('ZINCRBY', KEYS[4], -back, permit) end
end
redis.call('SET', KEYS[1], string.format('%.6f', now), 'EX', 2592000)
"""
# ARGV: seconds per request (0: no rate), burst, whether audio is limited, streams (0: no limit), permit ('': none), lease.
ENTER = (
    NOW
    + """
local step, burst, streams = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local due, ahead, remaining = now, 0, -1
if step > 0 then
  due = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), now)
  ahead = due - now
  local room = step * burst - ahead
  if room < step * (1 - 1e-6) then return {'rate_limited', tostring(step - room), 0, tostring(ahead)} end
  remaining = math.floor(room / step + 1e-6) - 1
end
if ARGV[3] == '1' then
  local over = tonumber(redis.call('GET', KEYS[3]) or '0') - now - 60
  if over >= 0 then return {'quota_exceeded', tostring(over), remaining, tostring(ahead)} end
end
if ARGV[5] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
  if streams > 0 and redis.call('ZCARD', KEYS[4]) >= streams then
    return {'too_many_concurrent_requests', '0', remaining, tostring(ahead)}
  end
  redis.call('ZADD', KEYS[4], string.format('%.6f', now + ARGV[6]), ARGV[5])
  redis.call('PEXPIRE', KEYS[4], math.ceil(ARGV[6] * 2000))
end
if step > 0 then
  redis.call('SET', KEYS[2], string.format('%.6f', due + step), 'PX', math.ceil((ahead + step) * 1000) + 1000)
end
return {'', '0', remaining, tostring(ahead + step)}
"""
)
# ARGV: lease, seconds the audio's number moves on, permits.
RENEW = (
    NOW
    + """
if ARGV[2] ~= '0' then
  local due = math.max(tonumber(redis.call('GET', KEYS[3]) or '0'), now) + ARGV[2]
  redis.call('SET', KEYS[3], string.format('%.6f', due), 'PX', math.ceil((due - now) * 1000) + 1000)
end
for each = 3, #ARGV do redis.call('ZADD', KEYS[4], string.format('%.6f', now + ARGV[1]), ARGV[each]) end
if #ARGV > 2 then redis.call('PEXPIRE', KEYS[4], math.ceil(ARGV[1] * 2000)) end
"""
)
# KEYS: characters without their day. ARGV: characters, limit.
WRITE = """
local clock = redis.call('TIME')
local today = math.floor(clock[1] / 86400)
local used = redis.call('HMGET', KEYS[1], 'day', 'characters')
local sum = (used[1] == tostring(today)) and tonumber(used[2]) or 0
if sum + ARGV[1] > tonumber(ARGV[2]) then return {'quota_exceeded', tostring(86400 - clock[1] % 86400), today} end
redis.call('HSET', KEYS[1], 'day', today, 'characters', sum + ARGV[1])
redis.call('EXPIRE', KEYS[1], 172800)
return {'', '0', today}
"""
# KEYS: characters without their day. ARGV: characters, the day they were charged to.
REFUND = """
local used = redis.call('HMGET', KEYS[1], 'day', 'characters')
if used[1] == ARGV[2] then redis.call('HSET', KEYS[1], 'characters', math.max(0, used[2] - ARGV[1])) end
"""
# KEYS: characters without their day.
READ = """
local today = math.floor(redis.call('TIME')[1] / 86400)
local used = redis.call('HMGET', KEYS[1], 'day', 'characters')
return (used[1] == tostring(today)) and tonumber(used[2]) or 0
"""


class RedisQuotas:
    """Quotas counted in Redis, or by this replica's share of each while Redis is away."""

    def __init__(self, url: str, local: LocalQuotas, *, lease_s: float = LEASE_S) -> None:
        self._link = RedisLink(url, connect_timeout_s=ANSWER_TIMEOUT_S, answer_timeout_s=ANSWER_TIMEOUT_S, on_away=_warn)
        self._redis = self._link.client
        self._enter = self._redis.register_script(ENTER)
        self._write = self._redis.register_script(WRITE)
        self._read = self._redis.register_script(READ)
        self._refund = self._redis.register_script(REFUND)
        self._renew = self._redis.register_script(RENEW)
        self._local = local
        self._lease_s = lease_s
        self._permits: dict[str, set[str]] = {}
        self._audio: dict[str, float] = {}  # by key: seconds not reported yet, scaled to the quota
        self._leaving: set[asyncio.Task[Any]] = set()

    @property
    def is_away(self) -> bool:
        """True while Redis does not answer; `renew` finds it again."""
        return self._link.is_away

    async def acquire(self, key: str, quota: Quota, permit: str | None) -> QuotaDecision:
        """Takes one request and, with a permit, one stream: both or neither."""
        if permit is not None:
            # Before the call: if its answer is lost, the permit must still be renewed and given back.
            self._permits.setdefault(key, set()).add(permit)
        step = 0.0 if quota.requests_per_s is None else 1 / quota.requests_per_s
        limited = int(quota.audio_s_a_minute is not None)
        values: list[str | float] = [step, quota.burst, limited, quota.streams or 0, permit or "", self._lease_s]
        answer = await self._ask(lambda: self._enter(_names(key, *NUMBERS), values))
        if answer is None:
            decision = await self._local.acquire(key, quota, permit)
        else:
            refusal, retry_s, remaining, reset_s = answer
            decision = QuotaDecision(refusal.decode(), float(retry_s), None if remaining < 0 else remaining, float(reset_s))
            if not decision.refusal:
                self._local.record(key, quota, permit)
        if decision.refusal and permit is not None:
            self._permits.get(key, set()).discard(permit)
        return decision

    async def charge_characters(self, key: str, quota: Quota, characters: int) -> QuotaDecision:
        """Takes characters of the day: all or none."""
        limit = quota.characters_a_day
        if limit is None:
            return QuotaDecision()
        answer = await self._ask(lambda: self._write(_names(key, "characters"), [characters, limit]))
        if answer is None:
            return await self._local.charge_characters(key, quota, characters)
        decision = QuotaDecision(answer[0].decode(), float(answer[1]), day=int(answer[2]))
        if not decision.refusal:
            self._local.record_characters(key, characters)
        return decision

    def refund_characters(self, key: str, quota: Quota, charge: Charge) -> None:
        """Takes a charge back, unless its day is over; if Redis is away, from this replica's count alone."""
        if quota.characters_a_day is not None:
            self._local.refund_characters(key, quota, charge)
            self._tell(lambda: self._refund(_names(key, "characters"), [charge.characters, charge.day]))

    async def characters_today(self, key: str) -> int:
        """Returns the characters of the day that all replicas charged."""
        answer = await self._ask(lambda: self._read(_names(key, "characters")))
        return await self._local.characters_today(key) if answer is None else int(answer)

    def record_audio(self, key: str, quota: Quota, audio_s: float) -> None:
        """Counts generated audio; reported to Redis by the next round of follow()."""
        self._local.record_audio(key, quota, audio_s)
        if quota.audio_s_a_minute is not None:
            self._audio[key] = self._audio.get(key, 0.0) + audio_s * MINUTE_S / quota.audio_s_a_minute

    def release(self, key: str, permit: str) -> None:
        """Gives a permit back; does nothing if it is not held."""
        self._local.release(key, permit)
        held = self._permits.get(key, set())
        held.discard(permit)
        if not held:
            self._permits.pop(key, None)
        self._tell(lambda: self._redis.zrem(_names(key, "streams")[0], permit))

    async def follow(self) -> None:
        """Renews leases and reports audio every PERIOD_S; notices when Redis is away and when it is back."""
        while True:
            await self.renew()
            await asyncio.sleep(PERIOD_S)

    async def renew(self) -> None:
        """Runs one round of follow(). Stops at the first call without an answer: the others would wait as long."""
        was_away, answers = self.is_away, True
        audio, self._audio = self._audio, {}
        pending = {**audio, **{key: audio.get(key, 0.0) for key in self._permits}}
        for key, moved_s in pending.items():
            permits = self._permits.get(key, set())
            values = [self._lease_s, moved_s or "0", *permits]
            question = partial(self._renew, _names(key, *NUMBERS), values)
            answers = answers and await self._ask(question, is_probe=True) is not None
            if not answers:
                self._audio[key] = self._audio.get(key, 0.0) + moved_s  # next time
        if not pending:  # otherwise a request would wait to find out
            await self._ask(self._redis.ping, is_probe=True)
        if was_away and not self.is_away:
            LOG.info("keys: the store is back; quotas are counted together again")

    async def close(self) -> None:
        """Gives back the permits this process holds and closes its connections."""
        for key, permits in list(self._permits.items()):
            for permit in list(permits):
                self.release(key, permit)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._link.close()

    def _tell(self, question: Callable[[], Awaitable[Any]]) -> None:
        """Sends what needs no answer, soon."""
        task = asyncio.create_task(self._ask(question))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _ask(self, question: Callable[[], Awaitable[Any]], *, is_probe: bool = False) -> Any:
        """Returns the answer, True for Redis' nil, or None if Redis is away."""

        async def answered() -> Any:
            answer = await question()
            return True if answer is None else answer

        return await self._link.ask(answered, timeout_s=2 * ANSWER_TIMEOUT_S, is_probe=is_probe)


def _warn(error: Exception) -> None:
    LOG.warning("keys: the store does not answer (%s); each replica allows its share", type(error).__name__)


def _names(key: str, *parts: str) -> list[str]:
    """Returns the names of one key's numbers; the braces keep them in one slot of a cluster."""
    return [f"{{chattts:quota:{key}}}:{part}" for part in parts]
