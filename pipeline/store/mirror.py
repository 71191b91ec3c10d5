"""Mirror: one namespace of a store, in memory. Requests read it and never wait; its owner refreshes it.

In:    a store, a namespace, a decoder of bytes
Out:   values by key, and by key and version
Owns:  the copy
Never: writes; timers: the owner calls refresh()

While the store does not answer, the copy stays as it was.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from pipeline.errors import StoreUnavailable
from pipeline.store.store import START, Changes, Store

LOG = logging.getLogger("ray.serve.chattts")

T = TypeVar("T")

WAIT_S = 0.5
"""for a refresh in another thread"""


class Mirror(Generic[T]):
    """Every live record of a namespace, as of the last refresh."""

    def __init__(self, store: Store, namespace: str, decode: Callable[[str, int, bytes], T]) -> None:
        """
        Args:
            decode: value of key, version and bytes. A record for which it raises is left out, logged once, and its key kept
                in `broken`, so that one bad record does not cost the others.
        """
        self._store = store
        self._namespace = namespace
        self._decode = decode
        self._lock = threading.Lock()
        self._position = START
        self._keys: Mapping[str, Mapping[int, T]] = MappingProxyType({})
        self.broken: frozenset[str] = frozenset()
        """keys with a record that cannot be decoded"""
        self.was_set_back = False
        """whether the latest refresh found the store emptied, replaced or set back to an older state"""

    def refresh(self) -> bool:
        """Reads what has changed; returns True when something has.

        Raises:
            StoreUnavailable: the copy stays as it was. Also while another thread has been reading for WAIT_S.
        """
        if not self._lock.acquire(timeout=WAIT_S):
            raise StoreUnavailable(f"the {self._namespace} are still being read; try again", place=self._store.place)
        try:
            changes = self._store.changes(self._namespace, self._position)
            has_changed = bool(changes.entries) or (changes.is_whole and not self.is_empty)
            if has_changed:
                self._take_over(changes)
            self.was_set_back = changes.is_set_back
            self._position = changes.position
            return has_changed
        finally:
            self._lock.release()

    def _take_over(self, changes: Changes) -> None:
        keys = {} if changes.is_whole else dict(self._keys)
        broken = set() if changes.is_whole else set(self.broken)
        for entry in changes.entries:
            keys.pop(entry.key, None)
            broken.discard(entry.key)
            values: dict[int, T] = {}
            for version, value in entry.versions:
                try:
                    values[version] = self._decode(entry.key, version, value)
                except Exception as error:
                    broken.add(entry.key)
                    LOG.error("%s: %s@%d cannot be read: %s", self._namespace, entry.key, version, type(error).__name__)
            if values:
                keys[entry.key] = MappingProxyType(values)
        # Readers see the old mapping or the new one, never one that is being changed.
        self._keys = MappingProxyType(keys)
        self.broken = frozenset(broken)

    def get(self, key: str, version: int | None = None) -> T | None:
        """Returns the value of a version, for None of the newest; None if there is none."""
        versions = self._keys.get(key)
        if versions is None:
            return None
        return versions.get(max(versions) if version is None else version)

    @property
    def keys(self) -> frozenset[str]:
        """All keys, those of records that cannot be read too."""
        return self.broken.union(self._keys)

    @property
    def is_empty(self) -> bool:
        """True if there is no record, readable or not."""
        return not self._keys and not self.broken

    @property
    def versions(self) -> Mapping[str, Mapping[int, T]]:
        """Every key's versions."""
        return self._keys

    def newest(self) -> dict[str, T]:
        """Returns every key's newest value, in the order of the keys."""
        return {key: versions[max(versions)] for key, versions in sorted(self._keys.items())}
