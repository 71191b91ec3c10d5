"""Redis: the cache's tier that all processes of all nodes share. It may be away: then there is less to find, and no more.

In:    entries by key
Out:   the same entries, for as long as Redis keeps them
Owns:  a connection pool
Never: an error for whoever asks; waiting longer than its time limits

Run it without persistence and with a `maxmemory-policy` that evicts (allkeys-lru): everything in it can be made again.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

T = TypeVar("T")

CONNECT_TIMEOUT_S = 0.1
ANSWER_TIMEOUT_S = 0.5
WRITE_TIMEOUT_S = 5.0
REST_S = 5.0  # after a failure nobody asks for so long: a Redis that hangs costs one wait in five seconds
MOST_WRITES = 8  # under way at once; further entries are not written
BATCH = 500  # keys of one step of a purge
PREFIX = "chattts:cache"


class RedisTier:
    """Asks, and takes no answer for "not there"."""

    def __init__(self, url: str, ttl_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis: Any = redis.asyncio.Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=WRITE_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._ttl_ms = round(1000 * ttl_s)
        self._clock = clock
        self._asked_again_at = 0.0
        self._writes: set[asyncio.Task[None]] = set()
        self.errors = 0
        """questions Redis did not answer, and entries it did not take, since start"""

    async def get(self, owner: str, key: str) -> bytes | None:
        """An entry, or None."""
        found = await self._asked(lambda: self._redis.get(_name(owner, key)), ANSWER_TIMEOUT_S)
        return None if found is None else bytes(found)

    async def has(self, owner: str, key: str) -> bool:
        """Whether it is there."""
        return bool(await self._asked(lambda: self._redis.exists(_name(owner, key)), ANSWER_TIMEOUT_S))

    def put(self, owner: str, key: str, content: bytes) -> None:
        """Write an entry, in a task of its own: nobody waits for it."""
        if len(self._writes) >= MOST_WRITES:
            self.errors += 1
            return
        task = asyncio.create_task(self._put(_name(owner, key), content))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def claim(self, name: str, content: bytes, ttl_s: float) -> bytes | None:
        """What is kept under a name; the given content from now on where nothing is. None: Redis is away."""

        async def ask() -> bytes:
            kept = await self._redis.set(f"{PREFIX}:{name}", content, px=round(1000 * ttl_s), nx=True, get=True)
            return content if kept is None else bytes(kept)

        return await self._asked(ask, ANSWER_TIMEOUT_S)

    async def release(self, name: str) -> None:
        """Forget what is kept under a name."""
        await self._asked(lambda: self._redis.unlink(f"{PREFIX}:{name}"), ANSWER_TIMEOUT_S)

    async def purge(self, owner: str | None) -> None:
        """Remove the entries of an owner, everybody's for None."""
        pattern = f"{PREFIX}:steps:{'*' if owner is None else _hashed(owner)}:*"

        async def remove() -> None:
            names = []
            async for name in self._redis.scan_iter(match=pattern, count=BATCH):
                names.append(name)
                if len(names) == BATCH:
                    await self._redis.unlink(*names)
                    names.clear()
            if names:
                await self._redis.unlink(*names)

        await self._asked(remove, None)

    async def written(self) -> None:
        """Wait until every write under way is done."""
        await asyncio.gather(*self._writes)

    async def close(self) -> None:
        """Let go of connections."""
        await self.written()
        await self._redis.aclose()

    async def _put(self, name: str, content: bytes) -> None:
        await self._asked(lambda: self._redis.set(name, content, px=self._ttl_ms), WRITE_TIMEOUT_S)

    async def _asked(self, question: Callable[[], Awaitable[T]], timeout_s: float | None) -> T | None:
        if self._clock() < self._asked_again_at:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                return await question()
        except (RedisError, OSError, TimeoutError):
            self.errors += 1
            self._asked_again_at = self._clock() + REST_S
            return None


def _hashed(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:16]


def _name(owner: str, key: str) -> str:
    return f"{PREFIX}:steps:{_hashed(owner)}:{key}"
