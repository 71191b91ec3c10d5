"""Redis tier: the part of the cache that all processes on all nodes share. While Redis is away, it finds nothing.

In:    entries by key
Out:   the same entries, for as long as Redis keeps them
Owns:  a Redis link, and the writes in progress
Never: an error for the caller; waiting longer than its time limits

Run it without persistence and with a `maxmemory-policy` that evicts (allkeys-lru): every entry can be computed again.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable

from pipeline.store.redis_link import RedisLink

CONNECT_TIMEOUT_S = 0.1
ANSWER_TIMEOUT_S = 0.5
WRITE_TIMEOUT_S = 5.0
RETRY_AFTER_S = 5.0  # after a failure: a hanging Redis costs one wait in five seconds
MAX_WRITES = 8  # in progress at once; further entries are not written
BATCH = 500  # keys per step of a purge
PREFIX = "chattts:cache"


class RedisTier:
    """Entries in Redis; no answer counts as "not there"."""

    def __init__(self, url: str, ttl_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = RedisLink(
            url,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            answer_timeout_s=WRITE_TIMEOUT_S,
            retry_after_s=RETRY_AFTER_S,
            clock=clock,
        )
        self._redis = self._link.client
        self._ttl_ms = round(1000 * ttl_s)
        self._writes: set[asyncio.Task[None]] = set()
        self._skipped_writes = 0

    @property
    def errors(self) -> int:
        """Calls that failed and entries that were not written, since the start."""
        return self._link.errors + self._skipped_writes

    async def get(self, owner: str, key: str) -> bytes | None:
        """Returns an entry, or None."""
        found = await self._link.ask(lambda: self._redis.get(_name(owner, key)), timeout_s=ANSWER_TIMEOUT_S)
        return None if found is None else bytes(found)

    async def has(self, owner: str, key: str) -> bool:
        """True if the entry is there."""
        return bool(await self._link.ask(lambda: self._redis.exists(_name(owner, key)), timeout_s=ANSWER_TIMEOUT_S))

    def put(self, owner: str, key: str, content: bytes) -> None:
        """Writes an entry in a task of its own; does not wait for it."""
        if len(self._writes) >= MAX_WRITES:
            self._skipped_writes += 1
            return
        task = asyncio.create_task(self._put(_name(owner, key), content))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def claim(self, name: str, content: bytes, ttl_s: float) -> bytes | None:
        """Returns the content stored under a name, after storing `content` if there was none; None: Redis is away."""

        async def ask() -> bytes:
            kept = await self._redis.set(f"{PREFIX}:{name}", content, px=round(1000 * ttl_s), nx=True, get=True)
            return content if kept is None else bytes(kept)

        return await self._link.ask(ask, timeout_s=ANSWER_TIMEOUT_S)

    async def claimed(self, name: str) -> bytes | None:
        """Returns the content under a name; None: there is none, or Redis is away."""
        found = await self._link.ask(lambda: self._redis.get(f"{PREFIX}:{name}"), timeout_s=ANSWER_TIMEOUT_S)
        return None if found is None else bytes(found)

    async def release(self, name: str) -> None:
        """Deletes the content under a name."""
        await self._link.ask(lambda: self._redis.unlink(f"{PREFIX}:{name}"), timeout_s=ANSWER_TIMEOUT_S)

    async def purge(self, owner: str | None) -> None:
        """Deletes the entries of one owner, or of all owners for None."""
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

        await self._link.ask(remove, timeout_s=None)

    async def written(self) -> None:
        """Waits until every write in progress is done."""
        await asyncio.gather(*self._writes)

    async def close(self) -> None:
        """Waits for writes and closes the connections."""
        await self.written()
        await self._link.close()

    async def _put(self, name: str, content: bytes) -> None:
        await self._link.ask(lambda: self._redis.set(name, content, px=self._ttl_ms), timeout_s=WRITE_TIMEOUT_S)


def _hashed(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:16]


def _name(owner: str, key: str) -> str:
    return f"{PREFIX}:steps:{_hashed(owner)}:{key}"
