"""Memory: the cache's tier in this process, limited in bytes; the least recently used entry is evicted first.

In:    entries by entry key
Out:   the same entries
Owns:  their bytes
Never: time, threads: one event loop uses it
"""

from collections import OrderedDict
from collections.abc import Callable

from pipeline.cache.key import CacheEntryKey

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
        found = self._entries.get(digest)
        if found is None:
            return None
        self._entries.move_to_end(digest)
        return found[1]

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
        found = self._entries.pop(digest, None)
        if found is not None:
            self.bytes -= len(found[1]) + OVERHEAD
