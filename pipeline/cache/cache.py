"""Cache: the tiers and the shared streams of one process.

In:    entry keys, and for each a function that generates its steps
Out:   steps
Owns:  the memory tier, the segments in progress, the counts
Never: how steps are generated; an entry of another fingerprint, or from before a purge

    lookup -> in memory -> in progress: join -> in the shared tier -> generate
                  |              |                    |               |
                  '--------------'--- steps returned -'---------------'--> stored in both tiers when complete
"""

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from pipeline.cache.invalidation import PurgeGenerations
from pipeline.cache.key import CacheEntryKey
from pipeline.cache.serialization import pack, unpack
from pipeline.cache.single_flight import SharedStream
from pipeline.errors import AtCapacity, DeadlineExceeded, NotCached, OtherBuild
from pipeline.store.threads import ask_store
from pipeline.types import CacheResult, Lane, Position, SchedulingParams, StepBlock

NOT_THERE = "this speech is not in the cache, and the request accepts nothing else (only-if-cached)"
OVERHEAD = 256  # bytes of an entry beside its content: key, tuple, slot in the table


class MemoryTier:
    """An LRU cache of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """size of all entries, with OVERHEAD each"""
        self.evictions = 0
        """entries removed to make space, since start"""
        self._entries: OrderedDict[str, tuple[CacheEntryKey, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, digest: str) -> bool:
        """True if the entry is there; this does not count as a use."""
        return digest in self._entries

    def get(self, digest: str) -> bytes | None:
        """Returns an entry, now the most recently used one, or None."""
        entry = self._entries.get(digest)
        if entry is None:
            return None
        self._entries.move_to_end(digest)
        return entry[1]

    def put(self, entry_key: CacheEntryKey, content: bytes) -> None:
        """Stores an entry and evicts others as needed; one larger than the whole tier is not stored."""
        self._drop(entry_key.digest)
        size = len(content) + OVERHEAD
        if size > self.max_bytes:
            return
        while self.bytes + size > self.max_bytes:
            self._drop(next(iter(self._entries)))
            self.evictions += 1
        self._entries[entry_key.digest] = (entry_key, content)
        self.bytes += size

    def drop(self, is_dropped: Callable[[CacheEntryKey], bool]) -> None:
        """Removes every entry for which `is_dropped` is true."""
        for digest in [digest for digest, (entry_key, _) in self._entries.items() if is_dropped(entry_key)]:
            self._drop(digest)

    def _drop(self, digest: str) -> None:
        entry = self._entries.pop(digest, None)
        if entry is not None:
            self.bytes -= len(entry[1]) + OVERHEAD


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The cache at one moment; counts are since start."""

    entries: int
    bytes: int
    max_bytes: int
    in_progress: int
    """segments being read or generated now"""
    memory_hits: int
    shared_hits: int
    joined: int
    """lookups that joined a segment in progress"""
    misses: int
    evictions: int
    shared_errors: int
    steps: int
    """steps returned without being generated again; 46.875 are one second of speech"""


@dataclass(frozen=True, slots=True)
class GenerationTerms:
    """The conditions under which a segment is generated."""

    deadline: float
    """monotonic seconds"""
    admitted: bool
    """it may queue even if the waiting room is full"""
    urgency: int = 0
    """position of its lane: 0 is the most urgent"""
    promised: bool = False
    """it is refused if its first audio would come too late"""

    def may_join(self, other: "GenerationTerms") -> bool:
        """True if this request may join a generation started with `other`: never one in a less urgent lane."""
        return other.urgency <= self.urgency

    def may_outlive(self, other: "GenerationTerms", error: AtCapacity | DeadlineExceeded) -> bool:
        """True if this request could still succeed where `other` failed with `error`."""
        if isinstance(error, DeadlineExceeded):
            return self.deadline > other.deadline
        return other.promised or (self.admitted and not other.admitted)


class SharedTier(Protocol):
    """The tier that all processes share, such as RedisTier. While it is unreachable, it finds nothing and raises nothing."""

    @property
    def errors(self) -> int:
        """Calls that failed and entries that were not written, since the start."""
        ...

    async def get(self, owner: str, key: str) -> bytes | None:
        """Returns an entry, or None."""
        ...

    async def has(self, owner: str, key: str) -> bool:
        """True if the entry is there."""
        ...

    def put(self, owner: str, key: str, content: bytes) -> None:
        """Stores an entry in the background."""
        ...

    async def purge(self, owner: str | None) -> None:
        """Deletes the entries of one owner, or of all owners for None."""
        ...

    async def close(self) -> None:
        """Waits for what is being stored, and closes connections."""
        ...


Generate = Callable[[GenerationTerms], AsyncGenerator[StepBlock, None]]
OnSource = Callable[[CacheResult], None]
OnBuild = Callable[[str], None]


class CodeCache:
    """Steps by entry key. One event loop uses it."""

    def __init__(
        self, max_bytes: int, *, shared: SharedTier | None = None, generations: PurgeGenerations | None = None
    ) -> None:
        """
        Args:
            max_bytes: size of the memory tier; 0: only segments in progress are shared.
        """
        self.generations = generations or PurgeGenerations(None)
        self._shared = shared
        self._memory = MemoryTier(max_bytes)
        self._in_progress: dict[str, tuple[SharedStream, GenerationTerms]] = {}
        self._memory_hits = self._shared_hits = self._joined = self._misses = self._steps = 0

    async def steps(
        self,
        entry_key: CacheEntryKey,
        generate: Generate,
        terms: GenerationTerms,
        *,
        refresh: bool,
        on_source: OnSource,
        on_build: OnBuild,
        must_be_cached: bool = False,
    ) -> AsyncGenerator[StepBlock, None]:
        """Streams the steps of one segment: from a tier, from a segment in progress, or newly generated.

        Args:
            generate: opens the stream that generates them.
            refresh: generate them in any case, and replace the entry.
            on_source: called with the source of the steps, before the first of them.
            on_build: called with the fingerprint of the engine that has generated the last of them, if it was asked.

        Raises:
            NotCached: they must be in the cache, and are not.
            OtherBuild: a joined generation failed half-way, and what is left was made by another build.
            Else whatever the stream of `generate` raises, even if another request opened it.
        """
        if must_be_cached and not await self.has(entry_key):
            raise NotCached(NOT_THERE, param="cache")
        position = Position()
        while True:
            cached = None if refresh else self._from_memory(entry_key)
            if cached is not None:
                _check_build(position, entry_key.fingerprint)
                on_source(CacheResult.HIT)
                yield cached.after(position)
                return
            stream, its_terms = (None, terms) if refresh else self._in_progress.get(entry_key.digest, (None, terms))
            if stream is None or not terms.may_join(its_terms):
                its_terms = terms
                stream = self._start(entry_key, generate, terms, refresh=refresh, on_source=on_source, on_build=on_build)
            else:
                self._joined += 1
                on_source(CacheResult.JOINED)
            try:
                read = 0
                async with stream.listening():
                    while await stream.has(read):
                        block = stream.blocks[read]
                        read += 1
                        _check_build(position, block.fingerprint)
                        position |= Position(build=block.fingerprint)
                        rest = block.after(position)
                        if not rest.is_empty:
                            position |= block.end
                            yield rest
                            self._steps += 0 if its_terms is terms else len(block.codes)
                return
            except (AtCapacity, DeadlineExceeded) as error:
                if its_terms is terms or not terms.may_outlive(its_terms, error):
                    raise
            # The joined generation failed on its own terms. This request's terms are better: it goes on from `position`.

    async def has(self, entry_key: CacheEntryKey) -> bool:
        """True if these steps are in a tier or in progress."""
        if entry_key.digest in self._memory or entry_key.digest in self._in_progress:
            return True
        return self._shared is not None and await self._shared.has(entry_key.tenant, entry_key.digest)

    async def purge(self, tenant: str | None) -> None:
        """Deletes one tenant's steps, or all for None, in every process that shares the store and the shared tier.

        Raises:
            StoreUnavailable: they are deleted in this process and in the shared tier only.
        """
        self._memory.drop(lambda entry_key: tenant is None or entry_key.tenant == tenant)
        if self._shared is not None:
            await self._shared.purge(tenant)
        await ask_store(self.generations.purge, tenant)

    async def close(self) -> None:
        """Closes the shared tier."""
        if self._shared is not None:
            await self._shared.close()

    def drop_purged(self) -> None:
        """Frees the memory of entries that other processes have purged; no lookup finds them any more."""
        self._memory.drop(lambda entry_key: entry_key.generations != self.generations.of(entry_key.tenant))

    def stats(self) -> CacheStats:
        """Returns the counts at this moment."""
        return CacheStats(
            entries=len(self._memory),
            bytes=self._memory.bytes,
            max_bytes=self._memory.max_bytes,
            in_progress=len(self._in_progress),
            memory_hits=self._memory_hits,
            shared_hits=self._shared_hits,
            joined=self._joined,
            misses=self._misses,
            evictions=self._memory.evictions,
            shared_errors=0 if self._shared is None else self._shared.errors,
            steps=self._steps,
        )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _from_memory(self, entry_key: CacheEntryKey) -> StepBlock | None:
        content = self._memory.get(entry_key.digest)
        if content is None:
            return None
        block = unpack(content)
        self._memory_hits += 1
        self._steps += len(block.codes)
        return block

    def _start(
        self,
        entry_key: CacheEntryKey,
        generate: Generate,
        terms: GenerationTerms,
        *,
        refresh: bool,
        on_source: OnSource,
        on_build: OnBuild,
    ) -> SharedStream:
        async def make(stream: SharedStream) -> None:
            cached = None if refresh else await self._from_shared_tier(entry_key)
            on_source(CacheResult.MISS if cached is None else CacheResult.HIT)
            if cached is not None:
                stream.put(cached)
                return
            self._misses += 1
            async with aclosing(generate(terms)) as steps:
                async for block in steps:
                    if block.finish is not None:
                        on_build(block.fingerprint)
                        # Before the last block is delivered: a lookup after that is a hit.
                        self._store(entry_key, [*stream.blocks, block])
                    stream.put(block)

        def remove() -> None:
            if self._in_progress.get(entry_key.digest) == (stream, terms):
                del self._in_progress[entry_key.digest]

        stream = SharedStream(make, on_end=remove)
        self._in_progress[entry_key.digest] = stream, terms
        return stream

    async def _from_shared_tier(self, entry_key: CacheEntryKey) -> StepBlock | None:
        content = None if self._shared is None else await self._shared.get(entry_key.tenant, entry_key.digest)
        try:
            cached = None if content is None else unpack(content)
        except ValueError:
            return None  # damaged, or in another format: it is replaced
        if content is None or cached is None:
            return None
        self._shared_hits += 1
        self._steps += len(cached.codes)
        self._memory.put(entry_key, content)
        return replace(cached, fingerprint=entry_key.fingerprint)

    def _store(self, entry_key: CacheEntryKey, blocks: list[StepBlock]) -> None:
        """Stores a complete segment, unless the engine has changed or the entry has been purged meanwhile."""
        is_purged = entry_key.generations != self.generations.of(entry_key.tenant)
        if blocks[-1].fingerprint != entry_key.fingerprint or is_purged:
            return
        content = pack(blocks, entry_key.payload)
        self._memory.put(entry_key, content)
        if self._shared is not None:
            self._shared.put(entry_key.tenant, entry_key.digest, content)


def _check_build(position: Position, fingerprint: str) -> None:
    if not position.precedes(fingerprint):
        raise OtherBuild("the request that generated this segment failed, and what is left is of another build")


def terms_for(timeout_s: float, scheduling: SchedulingParams, *, admitted: bool) -> GenerationTerms:
    """Returns the terms of a request that begins now."""
    urgency = tuple(Lane).index(scheduling.lane)
    return GenerationTerms(time.monotonic() + timeout_s, admitted, urgency, promised=scheduling.first_audio_s is not None)
