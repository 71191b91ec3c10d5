"""Store: versioned records by namespace and key.

In:    bytes and the version they replace
Out:   versions, and everything that changed since a position
Owns:  nothing
Never: what the bytes mean

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
    """One key as it is now."""

    key: str
    versions: tuple[tuple[int, bytes], ...]
    """every version since the key was last created, oldest first; empty when it is deleted"""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened in a namespace since a position."""

    position: str
    """where this answer ends; opaque"""
    entries: tuple[Entry, ...]
    is_whole: bool
    """the entries are all there are: the position was START, or of a store that has been replaced or emptied since"""


class Store(Protocol):
    """Blocking; safe to share between threads. Every method but close() may raise StoreUnavailable."""

    place: str
    """where it is, for operators: a path, or a URL without its password"""

    def put(self, namespace: str, key: str, value: bytes, *, replaces: int, keeps: int | None = None) -> int:
        """Write the next version of a key and return its number; once this returns, the value is on disk or in Redis.

        Args:
            replaces: the newest version there is, 0 when the key is not there.
            keeps: how many versions stay, this one among them; None: all.

        Raises:
            Conflict: another version is the newest.
            StoreFull: there is no room.
        """
        ...

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a key and all values of its versions; False when it is not there."""
        ...

    def get(self, namespace: str, key: str) -> tuple[int, bytes] | None:
        """The newest version and its value."""
        ...

    def changes(self, namespace: str, since: str = START) -> Changes:
        """Every key that changed since a position, in one consistent view."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def check_address(namespace: str, key: str) -> None:
    """Our own mistake if it fails: names from outside are checked at the door."""
    assert NAMESPACE.fullmatch(namespace), f"namespace {namespace!r} must match {NAMESPACE.pattern}"
    assert KEY.fullmatch(key), "a key must match KEY"


def check_value(value: bytes) -> None:
    """Our own mistake if it fails."""
    assert len(value) <= MAX_VALUE_BYTES, f"a value of {len(value)} bytes; the limit is {MAX_VALUE_BYTES}"
