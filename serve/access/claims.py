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
from contextlib import suppress

from pipeline.errors import Conflict, SynthesisError
from pipeline.store.store import Store
from pipeline.store.threads import ask_store

NAMESPACE = "claims"
RECORDS = 1 << 16
"""some 30 MB where every one is used"""
MOST_OVERTAKEN = 16
"""times that others may take the record first"""
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

    def _claim(self, name: str, content: bytes, ttl_s: float) -> bytes | None:
        """Writes a claim unless the name has one; whoever is overtaken reads again, so that one of them is the first."""
        record = json.dumps([name, self._clock() + ttl_s, content.hex()]).encode()
        for _ in range(MOST_OVERTAKEN):
            version, kept = self._understood(name, self._store.get(NAMESPACE, self._key(name)))
            if kept is not None:
                return kept
            with suppress(Conflict):
                self._store.put(NAMESPACE, self._key(name), record, replaces=version, keeps=1)
                return content
        return None

    def _release(self, name: str) -> None:
        version, kept = self._read(name)
        if kept is not None:
            with suppress(Conflict):  # another name has taken the record meanwhile
                self._store.put(NAMESPACE, self._key(name), json.dumps(["", 0, ""]).encode(), replaces=version, keeps=1)

    def _read(self, name: str) -> tuple[int, bytes | None]:
        """Returns the record's version, and the content if it is this name's."""
        return self._understood(name, self._store.get(NAMESPACE, self._key(name)))

    def _understood(self, name: str, found: tuple[int, bytes] | None) -> tuple[int, bytes | None]:
        """A record that cannot be read, such as another release's, is nobody's: the next claim replaces it."""
        if found is None:
            return 0, None
        try:
            owner, until, content = json.loads(found[1])
            return found[0], bytes.fromhex(content) if owner == name and until > self._clock() else None
        except (ValueError, TypeError):
            return found[0], None

    def _key(self, name: str) -> str:
        return str(zlib.crc32(name.encode()) % self._records)
