"""Redis tier: the part of the cache that all processes on all nodes share. While Redis is away, it finds nothing.

In:    entries by key
Out:   the same entries, for as long as Redis keeps them
Owns:  a Redis link, and the writes in progress
Never: an error for the caller; waiting longer than its time limits

Run it without persistence and with a `maxmemory-policy` that evicts (allkeys-lru): every entry can be computed again. An entry
that Redis refuses, because it is full or read only, is not written; what is there is found all the same.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pipeline.store.redis_link import RedisLink

T = TypeVar("T")

LOG = logging.getLogger("ray.serve.chattts")

CONNECT_TIMEOUT_S = 5.0  # nobody waits for it longer than for an answer; the connection serves the next question
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
            on_trouble=_warn,
            clock=clock,
        )
        self._redis = self._link.client
        self._ttl_ms = round(1000 * ttl_s)
        self._writes: set[asyncio.Task[None]] = set()
        self._skipped_writes = self._defects = 0

    @property
    def errors(self) -> int:
        """Calls that failed and entries that were not written, since the start."""
        return self._link.errors + self._skipped_writes + self._defects

    async def get(self, owner: str, key: str) -> bytes | None:
        """Returns an entry, or None."""
        entry = await self._ask(lambda: self._redis.get(_name(owner, key)))
        return None if entry is None else bytes(entry)

    async def has(self, owner: str, key: str) -> bool:
        """True if the entry is there."""
        return bool(await self._ask(lambda: self._redis.exists(_name(owner, key))))

    def put(self, owner: str, key: str, content: bytes) -> None:
        """Writes an entry in a task of its own; does not wait for it."""
        if len(self._writes) >= MAX_WRITES:
            self._skipped_writes += 1
            return
        task = asyncio.create_task(self._put(_name(owner, key), content))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

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

        await self._ask(remove, timeout_s=None, stands_alone=True)

    async def written(self) -> None:
        """Waits until every write in progress is done."""
        await asyncio.gather(*self._writes)

    async def close(self) -> None:
        """Waits for writes and closes the connections."""
        await self.written()
        await self._link.close()

    async def _put(self, name: str, content: bytes) -> None:
        await self._ask(lambda: self._redis.set(name, content, px=self._ttl_ms), timeout_s=WRITE_TIMEOUT_S, stands_alone=True)

    async def _ask(
        self, question: Callable[[], Awaitable[T]], *, timeout_s: float | None = ANSWER_TIMEOUT_S, stands_alone: bool = False
    ) -> T | None:
        """Returns the answer, or None; a defect costs its question too, and is logged."""
        try:
            return await self._link.ask(question, timeout_s=timeout_s, stands_alone=stands_alone)
        except Exception:
            self._defects += 1
            LOG.exception("cache: a question to Redis failed")
            return None


def _warn(reason: str) -> None:
    LOG.warning("cache: the shared Redis %s; what it should keep is computed again", reason)


def _hashed(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:16]


def _name(owner: str, key: str) -> str:
    return f"{PREFIX}:steps:{_hashed(owner)}:{key}"
