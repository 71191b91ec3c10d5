"""Store: the protocol of versioned records by namespace and key.

In:    bytes and the version they replace
Out:   versions, and everything that changed since a position
Never: the meaning of the bytes

A version is written once and never changes. A deleted key keeps only its last version's number: when the key comes
back, its versions go on from there, so `key@2` never means two things. After REVISIONS_KEPT further changes of its namespace
the key is forgotten, so that a client that makes and deletes keys leaves nothing; new keys then begin behind its versions.
"""

import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from pipeline.errors import Conflict

LOG = logging.getLogger("ray.serve.chattts")

KEY = re.compile(r"[A-Za-z0-9._@-]{1,80}")
NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,31}")
MAX_VALUE_BYTES = 1 << 20
MAX_NAMESPACE_BYTES = 256 << 20
"""values of one namespace together: every replica that starts reads all of them, and holds most"""
REVISIONS_KEPT = 256
"""whose nonces a store remembers, and whose deleted keys; a reader that is further behind reads everything"""
FORGOTTEN_AT_ONCE = 100
"""keys that one change looks at, at most, to forget those that were deleted"""

SET_BACK = "the store was emptied, replaced or set back to an older state; what was written since then is gone"

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
    """the entries are complete: the position was START or too old, or the store has been replaced, emptied or set back since"""
    is_set_back: bool = False
    """the store is not a later state of the one at the position: it was replaced, emptied, or an older state was restored"""


class Store(Protocol):
    """Blocking; safe to share between threads. Every method but close() may raise StoreUnavailable."""

    place: str
    """its place, for operators: a path, or a URL without its password"""
    set_back: dict[str, str]
    """namespaces that were found emptied, replaced or set back to an older state by this process: when"""

    def put(self, namespace: str, key: str, value: bytes, *, replaces: int, keeps: int) -> int:
        """Writes the next version of a key and returns its number; once this returns, the value is on disk or in Redis.

        Args:
            replaces: the newest version there is, 0 when the key is not there.
            keeps: how many versions stay, this one among them: 1, unless requests can name an older one.

        Raises:
            Conflict: another version is the newest.
            StoreFull: the disk or the memory is full, or the namespace has MAX_NAMESPACE_BYTES.
            StoreUnavailable: with `outcome_unknown` it may have been written all the same.
        """
        ...

    def delete(self, namespace: str, key: str) -> bool:
        """Removes a key and all values of its versions; returns False when it is not there."""
        ...

    def get(self, namespace: str, key: str) -> tuple[int, bytes] | None:
        """Returns the newest version and its value; None when the key is not there."""
        ...

    def changes(self, namespace: str, since: str = START) -> Changes:
        """Returns every key that changed since a position; each as it was at one moment of the call."""
        ...

    def probe(self) -> None:
        """Does nothing where something can be written.

        Raises:
            StoreUnavailable: why nothing can be.
        """
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


def conflict(newest: int, replaces: int) -> Conflict:
    """Returns the refusal of a write over something else than it says."""
    return Conflict(f"version {newest} is the newest there is, not {replaces}; read it again and repeat the change")


def namespace_full(namespace: str) -> str:
    """Returns the words about a namespace that has MAX_NAMESPACE_BYTES."""
    return f"the {namespace} take {MAX_NAMESPACE_BYTES >> 20} MiB, the most there may be; nothing was changed. Delete some"


def note_set_back(store: Store, namespace: str) -> None:
    """Remembers and logs that a namespace is no later state of what was read before."""
    store.set_back[namespace] = datetime.now(UTC).isoformat(timespec="seconds")
    LOG.error("%s: %s: %s", store.place, namespace, SET_BACK)
