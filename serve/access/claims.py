"""Claims: what names stand for until a time, in a bounded number of places that owners share fairly.

In:    names, `owner:anything`, and contents
Out:   what was claimed first
Owns:  a fixed number of records in the store of records, for all processes that share it
Never: an error for the caller: a store that is away knows nothing; a claim that gives way to an owner who has more
"""

import asyncio
import json
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress

from pipeline.errors import Conflict, SynthesisError
from pipeline.store.store import Store
from pipeline.store.threads import ask_store

NAMESPACE = "claims"
RECORDS = 1 << 12
PLACES = 64
"""of one record; some 50 MB where all of all records are taken"""
MOST_OVERTAKEN = 16
"""times that others may change the record first"""
ANSWER_TIMEOUT_S = 0.5
"""of a store that is slow; the claim then counts in this process alone"""


class Places:
    """Claims in memory. Where all places are taken, an outdated claim gives way, else the oldest of who has the most."""

    def __init__(self, most: int, claims: Iterable[tuple[str, float, bytes]] = ()) -> None:
        """
        Args:
            claims: name, until when, and content of each; the oldest first.
        """
        self._most = most
        self._owners: dict[str, OrderedDict[str, tuple[float, bytes]]] = {}
        for name, until, content in claims:
            self._owners.setdefault(_owner_of(name), OrderedDict())[name] = until, content

    def __len__(self) -> int:
        return sum(map(len, self._owners.values()))

    def get(self, name: str, now: float) -> bytes | None:
        """Returns what a name stands for; None: nothing."""
        claim = self._of(name).get(name)
        return claim[1] if claim is not None and claim[0] > now else None

    def put(self, name: str, content: bytes, until: float, now: float) -> None:
        """Claims a name."""
        self.remove(name)
        self._owners.setdefault(_owner_of(name), OrderedDict())[name] = until, content
        if len(self) > self._most:
            self.remove(min(map(self._oldest, self._owners), key=lambda oldest: (oldest[1] > now, -oldest[2]))[0])

    def remove(self, name: str) -> None:
        """Frees the place of a name."""
        claims = self._of(name)
        claims.pop(name, None)
        if not claims:
            self._owners.pop(_owner_of(name), None)

    def claims(self) -> list[tuple[str, float, bytes]]:
        """Returns them as the constructor takes them."""
        return [(name, *claim) for claims in self._owners.values() for name, claim in claims.items()]

    def _of(self, name: str) -> OrderedDict[str, tuple[float, bytes]]:
        """Returns the claims of a name's owner."""
        return self._owners.get(_owner_of(name), OrderedDict())

    def _oldest(self, owner: str) -> tuple[str, float, int]:
        """Returns an owner's oldest claim: its name and its end; and how many it has."""
        claims = self._owners[owner]
        name = next(iter(claims))
        return name, claims[name][0], len(claims)


class StoreClaims:
    """An idempotency.ClaimStore: each name falls on one record, which is used again and again."""

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
        return await self._ask(lambda: self._changed(name, content, ttl_s))

    async def claimed(self, name: str) -> bytes | None:
        """Returns what is stored under a name; None: nothing, or the store does not answer."""
        return await self._ask(lambda: self._read(name)[1].get(name, self._clock()))

    async def release(self, name: str) -> None:
        """Removes what is stored under a name."""
        await self._ask(lambda: self._changed(name, None))

    async def _ask(self, work: Callable[[], bytes | None]) -> bytes | None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await ask_store(work)
        except (SynthesisError, TimeoutError):
            return None

    def _changed(self, name: str, content: bytes | None, ttl_s: float = 0.0) -> bytes | None:
        """Claims a name that stands for nothing, or frees it for None; whoever is overtaken reads again, so that one is first.

        Returns:
            what the name stands for then; None too if others were always quicker.
        """
        for _ in range(MOST_OVERTAKEN):
            version, places = self._read(name)
            now = self._clock()
            known = places.get(name, now)
            if (known is None) == (content is None):
                return known
            if content is None:
                places.remove(name)
            else:
                places.put(name, content, now + ttl_s, now)
            with suppress(Conflict):
                self._write(name, places, version)
                return content
        return None

    def _read(self, name: str) -> tuple[int, Places]:
        """Returns the version and the places of a name's record; in one of another release none is taken."""
        version, record = self._store.get(NAMESPACE, self._key(name)) or (0, b"[]")
        try:
            claims = [(str(claim), float(until), bytes.fromhex(content)) for claim, until, content in json.loads(record)]
        except (ValueError, TypeError):
            claims = []
        return version, Places(PLACES, claims)

    def _write(self, name: str, places: Places, replaces: int) -> None:
        claims = [(claim, round(until, 3), content.hex()) for claim, until, content in places.claims()]
        self._store.put(NAMESPACE, self._key(name), json.dumps(claims).encode(), replaces=replaces, keeps=1)

    def _key(self, name: str) -> str:
        return str(zlib.crc32(name.encode()) % self._records)


def _owner_of(name: str) -> str:
    return name.partition(":")[0]
