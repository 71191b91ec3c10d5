"""Memory: the cache's tier in this process: bounded in bytes, the longest unused goes first.

In:    entries by place
Out:   the same entries
Owns:  their bytes
Never: time, threads: one event loop uses it
"""

from collections import OrderedDict
from collections.abc import Callable

from pipeline.cache.key import CacheEntryKey

OVERHEAD = 256  # bytes of an entry beside its content: key, tuple, place in the table


class MemoryTier:
    """An LRU of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """what the entries take"""
        self.evictions = 0
        """entries that made room, since start"""
        self._entries: OrderedDict[str, tuple[CacheEntryKey, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        """Whether it is there; asking does not make it young."""
        return key in self._entries

    def get(self, key: str) -> bytes | None:
        """The entry, which is the youngest from now on."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[1]

    def put(self, place: CacheEntryKey, content: bytes) -> None:
        """Keep an entry, in place of the oldest ones; one that is larger than the whole tier is not kept."""
        self._drop(place.key)
        size = len(content) + OVERHEAD
        if size > self.max_bytes:
            return
        while self.bytes + size > self.max_bytes:
            self._drop(next(iter(self._entries)))
            self.evictions += 1
        self._entries[place.key] = (place, content)
        self.bytes += size

    def drop(self, is_dropped: Callable[[CacheEntryKey], bool]) -> None:
        """Forget every entry of which that is true."""
        for key in [key for key, (place, _) in self._entries.items() if is_dropped(place)]:
            self._drop(key)

    def _drop(self, key: str) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self.bytes -= len(found[1]) + OVERHEAD
