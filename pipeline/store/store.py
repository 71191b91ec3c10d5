"""Store: the protocol of versioned records by namespace and key.

In:    bytes and the version they replace
Out:   versions, and everything that changed since a position
Owns:  nothing
Never: the meaning of the bytes

A version is written once and never changes. A deleted key keeps only its last version's number: when the key comes
back, its versions go on from there, so `key@2` never means two things.
"""

import re
from dataclasses import dataclass
from typing import Protocol

KEY = re.compile(r"[A-Za-z0-9._@-]{1,80}")
NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,31}")
MAX_VALUE_BYTES = 1 << 20

START = ""
"""the position before the first change"""


@dataclass(frozen=True, slots=True)
class Entry:
    """The present versions of one key."""

    key: str
    versions: tuple[tuple[int, bytes], ...]
    """every version since the key was last created, oldest first; empty when it is deleted"""


@dataclass(frozen=True, slots=True)
class Changes:
    """The keys of a namespace that changed since a position."""

    position: str
    """the position after these changes; opaque"""
    entries: tuple[Entry, ...]
    is_whole: bool
    """the entries are complete: the position was START, or the store has been replaced or emptied since"""


class Store(Protocol):
    """Blocking; safe to share between threads. Every method but close() may raise StoreUnavailable."""

    place: str
    """its place, for operators: a path, or a URL without its password"""

    def put(self, namespace: str, key: str, value: bytes, *, replaces: int, keeps: int) -> int:
        """Writes the next version of a key and returns its number; once this returns, the value is on disk or in Redis.

        Args:
            replaces: the newest version there is, 0 when the key is not there.
            keeps: how many versions stay, this one among them: 1, unless requests can name an older one.

        Raises:
            Conflict: another version is the newest.
            StoreFull: the disk or the memory is full.
        """
        ...

    def delete(self, namespace: str, key: str) -> bool:
        """Removes a key and all values of its versions; returns False when it is not there."""
        ...

    def get(self, namespace: str, key: str) -> tuple[int, bytes] | None:
        """Returns the newest version and its value; None when the key is not there."""
        ...

    def changes(self, namespace: str, since: str = START) -> Changes:
        """Returns every key that changed since a position, in one consistent view."""
        ...

    def close(self) -> None:
        """Closes connections."""
        ...


def check_address(namespace: str, key: str) -> None:
    """Asserts valid names: those of requests are validated before."""
    assert NAMESPACE.fullmatch(namespace), f"namespace {namespace!r} must match {NAMESPACE.pattern}"
    assert KEY.fullmatch(key), "a key must match KEY"


def check_value(value: bytes) -> None:
    """Asserts a value within the limit."""
    assert len(value) <= MAX_VALUE_BYTES, f"a value of {len(value)} bytes; the limit is {MAX_VALUE_BYTES}"
