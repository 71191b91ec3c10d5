"""Claims: an idempotency.ClaimStore over the store of records, for all processes that share it.

In:    names and contents
Out:   what was claimed first
Owns:  a fixed number of records, each for the latest of the names that fall on it
Never: an error for the caller: a store that is away knows nothing; more records, however many names there are
"""

import asyncio
import json
import time
import zlib
from collections.abc import Callable

from pipeline.errors import Conflict, SynthesisError
from pipeline.store.store import Store
from pipeline.store.threads import ask_store

NAMESPACE = "claims"
RECORDS = 1 << 16
"""some 30 MB where every one is used"""
ANSWER_TIMEOUT_S = 0.5
"""of a store that is slow; the claim then counts in this process alone"""


class StoreClaims:
    """Claims in records that are used again and again: a name is forgotten when another one takes its record."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time, records: int = RECORDS) -> None:
        """
        Args:
            clock: seconds since 1970: claims outlive the process.
        """
        self._store = store
        self._clock = clock
        self._records = records

    async def claim(self, name: str, content: bytes, ttl_s: float) -> bytes | None:
        """Stores the content unless the name is taken. Returns what is stored now; None if the store does not answer."""
        return await self._ask(lambda: self._claim(name, content, ttl_s))

    async def claimed(self, name: str) -> bytes | None:
        """Returns what is stored under a name; None: nothing, or the store does not answer."""
        return await self._ask(lambda: self._read(name)[1])

    async def release(self, name: str) -> None:
        """Removes what is stored under a name."""
        await self._ask(lambda: self._release(name))

    async def _ask(self, work: Callable[[], bytes | None]) -> bytes | None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await ask_store(work)
        except (SynthesisError, TimeoutError):
            return None

    def _claim(self, name: str, content: bytes, ttl_s: float) -> bytes:
        record = json.dumps([name, self._clock() + ttl_s, content.hex()]).encode()
        while True:
            version, kept = self._read(name)
            if kept is not None:
                return kept
            try:
                self._store.put(NAMESPACE, self._key(name), record, replaces=version, keeps=1)
            except Conflict:
                continue  # another process took the record at this moment, perhaps for this name
            return content

    def _release(self, name: str) -> None:
        version, kept = self._read(name)
        if kept is not None:
            self._store.put(NAMESPACE, self._key(name), json.dumps(["", 0, ""]).encode(), replaces=version, keeps=1)

    def _read(self, name: str) -> tuple[int, bytes | None]:
        """Returns the record's version, and the content if it is this name's."""
        found = self._store.get(NAMESPACE, self._key(name))
        if found is None:
            return 0, None
        owner, until, content = json.loads(found[1])
        return found[0], bytes.fromhex(content) if owner == name and until > self._clock() else None

    def _key(self, name: str) -> str:
        return str(zlib.crc32(name.encode()) % self._records)
