"""Cache: the tiers and the flights of one process.

In:    places, and streams of steps for those where nothing is
Out:   steps
Owns:  the memory tier, the flights, the counts
Never: what makes the steps; keeping steps of another fingerprint, or what has been purged meanwhile

    asked for -> in memory -> under way: join -> in the shared tier -> made
                    |              |                |          |
                    '--------------'----- heard ----'----------'--> kept in both tiers once it is whole
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from pipeline.cache.invalidation import PurgeGenerations
from pipeline.cache.key import CacheEntryKey
from pipeline.cache.memory import MemoryTier
from pipeline.cache.serialization import pack, unpack
from pipeline.cache.single_flight import SharedStream
from pipeline.errors import AtCapacity, DeadlineExceeded
from pipeline.types import CacheResult, Lane, SchedulingParams, StepBlock


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The cache at one moment; counts are since start."""

    entries: int
    bytes: int
    max_bytes: int
    flights: int
    """segments under way now"""
    memory_hits: int
    shared_hits: int
    joined: int
    """asked for while they were made, and not made again"""
    misses: int
    evictions: int
    shared_errors: int
    steps: int
    """heard without being made again; 46.875 are a second of speech"""


@dataclass(frozen=True, slots=True)
class GenerationTerms:
    """On which conditions a segment is made."""

    deadline: float
    """monotonic seconds"""
    admitted: bool
    """it queues however full the waiting room is"""
    urgency: int = 0
    """place of its lane among the lanes: 0 waits for nobody"""
    promised: bool = False
    """it is refused where its first audio would come too late"""

    def may_join(self, other: "GenerationTerms") -> bool:
        """Whether somebody with these terms waits for what is made on the other ones: not behind a less urgent lane."""
        return other.urgency <= self.urgency

    def may_outlive(self, other: "GenerationTerms", end: AtCapacity | DeadlineExceeded) -> bool:
        """Whether what ended the other one would perhaps not end this one."""
        if isinstance(end, DeadlineExceeded):
            return self.deadline > other.deadline
        return other.promised or (self.admitted and not other.admitted)


class SharedTier(Protocol):
    """What other processes find too; redis.py is one. Being away is an answer: nothing is there."""

    @property
    def errors(self) -> int:
        """Questions without an answer and entries not written, since the start."""
        ...

    async def get(self, owner: str, key: str) -> bytes | None:
        """An entry."""
        ...

    async def has(self, owner: str, key: str) -> bool:
        """Whether it is there."""
        ...

    def put(self, owner: str, key: str, content: bytes) -> None:
        """Keep an entry; nobody waits for it."""
        ...

    async def purge(self, owner: str | None) -> None:
        """Remove the entries of an owner, everybody's for None."""
        ...


Make = Callable[[GenerationTerms], AsyncGenerator[StepBlock, None]]


class CodeCache:
    """Steps by place. One event loop uses it."""

    def __init__(
        self, max_bytes: int, *, shared: SharedTier | None = None, generations: PurgeGenerations | None = None
    ) -> None:
        """
        Args:
            max_bytes: of the tier in memory; 0: only what is under way is shared.
        """
        self.generations = generations or PurgeGenerations(None)
        self._shared = shared
        self._memory = MemoryTier(max_bytes)
        self._flights: dict[str, tuple[SharedStream, GenerationTerms]] = {}
        self._memory_hits = self._shared_hits = self._joined = self._misses = self._steps = 0

    async def steps(
        self,
        place: CacheEntryKey,
        make: Make,
        terms: GenerationTerms,
        *,
        refresh: bool,
        on_source: Callable[[CacheResult], None],
    ) -> AsyncGenerator[StepBlock, None]:
        """The steps of one segment: kept, under way, or made.

        Args:
            make: opens the stream that makes them.
            refresh: make them whatever is there, and keep these.
            on_source: where the steps come from, before the first of them.

        Raises:
            whatever `make`'s stream raises, whoever began it.
        """
        position = 0
        while True:
            kept = None if refresh else self._kept(place)
            if kept is not None:
                on_source(CacheResult.HIT)
                yield kept.after(position)
                return
            flight, its_terms = (None, terms) if refresh else self._flights.get(place.key, (None, terms))
            if flight is None or not terms.may_join(its_terms):
                its_terms = terms
                flight = self._start(place, make, terms, refresh=refresh, on_source=on_source)
            else:
                self._joined += 1
                on_source(CacheResult.JOINED)
            try:
                async with aclosing(flight.listen()) as blocks:
                    async for block in blocks:
                        if block.first_step + len(block.codes) > position or block.finish is not None:
                            yield block.after(position)
                            position = block.first_step + len(block.codes)
                            self._steps += 0 if its_terms is terms else len(block.codes)
                return
            except (AtCapacity, DeadlineExceeded) as end:
                if its_terms is terms or not terms.may_outlive(its_terms, end):
                    raise
            # It ended on the terms of whoever began it, and ours are better: from where we are, on ours.

    async def has(self, place: CacheEntryKey) -> bool:
        """Whether these steps need not be made."""
        if place.key in self._memory or place.key in self._flights:
            return True
        return self._shared is not None and await self._shared.has(place.tenant, place.key)

    async def purge(self, tenant: str | None) -> None:
        """Forget a tenant's steps, everybody's for None, in every process that shares the store and the shared tier.

        Raises:
            StoreUnavailable: only this process and the shared tier have forgotten them.
        """
        self._memory.drop(lambda place: tenant is None or place.tenant == tenant)
        if self._shared is not None:
            await self._shared.purge(tenant)
        await asyncio.to_thread(self.generations.purge, tenant)

    def drop_purged(self) -> None:
        """Give back the memory of what other processes have purged; nobody finds it any more."""
        self._memory.drop(lambda place: place.generations != self.generations.of(place.tenant))

    def stats(self) -> CacheStats:
        """The cache at this moment."""
        return CacheStats(
            entries=len(self._memory),
            bytes=self._memory.bytes,
            max_bytes=self._memory.max_bytes,
            flights=len(self._flights),
            memory_hits=self._memory_hits,
            shared_hits=self._shared_hits,
            joined=self._joined,
            misses=self._misses,
            evictions=self._memory.evictions,
            shared_errors=0 if self._shared is None else self._shared.errors,
            steps=self._steps,
        )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _kept(self, place: CacheEntryKey) -> StepBlock | None:
        content = self._memory.get(place.key)
        if content is None:
            return None
        block = unpack(content)
        self._memory_hits += 1
        self._steps += len(block.codes)
        return block

    def _start(
        self,
        place: CacheEntryKey,
        make: Make,
        terms: GenerationTerms,
        *,
        refresh: bool,
        on_source: Callable[[CacheResult], None],
    ) -> SharedStream:
        def over() -> None:
            if self._flights.get(place.key) == (flight, terms):
                del self._flights[place.key]

        made = self._made(place, on_source, make, terms)
        flight = SharedStream(
            made if refresh or self._shared is None else self._found(place, on_source, self._shared, made), over
        )
        self._flights[place.key] = flight, terms
        return flight

    async def _found(
        self,
        place: CacheEntryKey,
        on_source: Callable[[CacheResult], None],
        shared: SharedTier,
        made: AsyncGenerator[StepBlock, None],
    ) -> AsyncGenerator[StepBlock, None]:
        """The steps from the shared tier, else those that are made."""
        async with aclosing(made):
            content = await shared.get(place.tenant, place.key)
            try:
                kept = None if content is None else unpack(content)
            except ValueError:
                kept = None  # damaged, or of another make of this cache: written anew
            if content is None or kept is None:
                async for block in made:
                    yield block
                return
            self._shared_hits += 1
            self._steps += len(kept.codes)
            self._memory.put(place, content)
            on_source(CacheResult.HIT)
            yield kept

    async def _made(
        self, place: CacheEntryKey, on_source: Callable[[CacheResult], None], make: Make, terms: GenerationTerms
    ) -> AsyncGenerator[StepBlock, None]:
        """The steps from the model, kept once they are whole."""
        self._misses += 1
        on_source(CacheResult.MISS)
        blocks = []
        async with aclosing(make(terms)) as steps:
            async for block in steps:
                blocks.append(block)
                if block.finish is not None:
                    self._keep(place, blocks)  # before anybody hears the end: who asks then finds it
                yield block

    def _keep(self, place: CacheEntryKey, blocks: list[StepBlock]) -> None:
        """Keep a whole segment, if it is still what the place stands for."""
        if blocks[-1].fingerprint != place.fingerprint or place.generations != self.generations.of(place.tenant):
            return
        content = pack(blocks, hidden=place.hidden)
        self._memory.put(place, content)
        if self._shared is not None:
            self._shared.put(place.tenant, place.key, content)


def terms_for(timeout_s: float, scheduling: SchedulingParams, *, admitted: bool) -> GenerationTerms:
    """Terms that begin now."""
    urgency = tuple(Lane).index(scheduling.lane)
    return GenerationTerms(time.monotonic() + timeout_s, admitted, urgency, promised=scheduling.first_audio_s is not None)
