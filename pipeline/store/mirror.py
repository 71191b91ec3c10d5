"""Mirror: one namespace of a store, in memory. Requests read it and never wait; whoever owns it refreshes it.

In:    a store, a namespace, what makes a value of bytes
Out:   values by key, and by key and version
Owns:  the copy
Never: writing; time: refresh() is called from outside

While the store is away the copy stays what it was.
"""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from pipeline.store.store import START, Store

T = TypeVar("T")


class Mirror(Generic[T]):
    """Every live record of a namespace, as of the last refresh."""

    def __init__(self, store: Store, namespace: str, decode: Callable[[str, int, bytes], T]) -> None:
        """
        Args:
            decode: value of key, version and bytes; raises ValueError for bytes that are none. Such a record is left
                out and counted: one bad record is no reason to lose the others.
        """
        self._store = store
        self._namespace = namespace
        self._decode = decode
        self._lock = threading.Lock()
        self._position = START
        self._keys: Mapping[str, Mapping[int, T]] = MappingProxyType({})
        self.broken: frozenset[str] = frozenset()
        """keys with a record that could not be read"""

    def refresh(self) -> bool:
        """Take over what has changed; True when something has.

        Raises:
            StoreUnavailable: the copy stays what it was.
        """
        with self._lock:
            changes = self._store.changes(self._namespace, self._position)
            if not changes.entries and not (changes.is_whole and self._keys):
                self._position = changes.position
                return False
            keys = {} if changes.is_whole else dict(self._keys)
            broken = set() if changes.is_whole else set(self.broken)
            for entry in changes.entries:
                keys.pop(entry.key, None)
                broken.discard(entry.key)
                values: dict[int, T] = {}
                for version, value in entry.versions:
                    try:
                        values[version] = self._decode(entry.key, version, value)
                    except ValueError:
                        broken.add(entry.key)
                if values:
                    keys[entry.key] = MappingProxyType(values)
            # Readers see the old mapping or the new one, never one that is being changed.
            self._keys = MappingProxyType(keys)
            self.broken = frozenset(broken)
            self._position = changes.position
            return True

    def get(self, key: str, version: int | None = None) -> T | None:
        """The value of a version, of the newest one for None."""
        versions = self._keys.get(key)
        if versions is None:
            return None
        return versions.get(max(versions) if version is None else version)

    @property
    def is_empty(self) -> bool:
        """Whether there is no record, readable or not."""
        return not self._keys and not self.broken

    def newest(self) -> dict[str, T]:
        """Every key's newest value, in the order of the keys."""
        return {key: versions[max(versions)] for key, versions in sorted(self._keys.items())}
