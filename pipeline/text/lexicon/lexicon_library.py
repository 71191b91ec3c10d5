"""Lexicon library: stored lists of words and their sounds, by id.

In:    ids, entries to store
Out:   entries
Owns:  a mirror of the store
Never: waiting for the store during a lookup

Lookups read memory only. Writing, deleting and refresh() block; call them from a thread.
"""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import Conflict, StoreUnavailable, UnknownLexicon
from pipeline.store.mirror import Mirror
from pipeline.store.ownership import OPERATOR, Share, Writer, owner_in, owner_of
from pipeline.store.store import Store
from pipeline.types import LexiconEntry, PronunciationKind

NAMESPACE = "lexicons"
LEXICON_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
MAX_ENTRIES = 1000
MAX_LEXICONS = 1000
KEPT_VERSIONS = 1  # no request names an older one
SHARE = Share("lexicons", MAX_LEXICONS // 4, 16 << 20)  # in memory, in every replica, up to four times its bytes

Entries = tuple[LexiconEntry, ...]


@dataclass(frozen=True, slots=True)
class StoredLexicon:
    """One lexicon as the store has it."""

    entries: Entries
    owner: str
    size: int
    """bytes of its record"""


class LexiconLibrary:
    """The stored lexicons, as of the last refresh."""

    def __init__(self, store: Store | None = None) -> None:
        """
        Args:
            store: None: nothing can be stored.
        """
        self._store = store
        self._mirror = None if store is None else Mirror(store, NAMESPACE, lambda key, version, value: _decode(value))
        self._writing = threading.Lock()  # so that requests at once do not pass the limits together

    def get(self, lexicon_id: str) -> Entries:
        """Returns the entries of a lexicon.

        Raises:
            UnknownLexicon
        """
        lexicon = None if self._mirror is None else self._mirror.get(lexicon_id)
        if lexicon is None:
            raise UnknownLexicon("no such lexicon; PUT /v1/lexicons/{id} creates one", param="lexicon")
        return lexicon.entries

    def owned(self, owner: str) -> dict[str, Entries]:
        """Returns the entries of an owner's lexicons by their ids, in order."""
        newest = {} if self._mirror is None else self._mirror.newest()
        return {lexicon_id: lexicon.entries for lexicon_id, lexicon in newest.items() if lexicon.owner == owner}

    def put(self, lexicon_id: str, entries: Entries, writer: Writer = OPERATOR) -> int:
        """Stores a lexicon in place of an earlier one, which keeps its owner; returns its version. Raises as `change` does."""
        return self.change(lexicon_id, lambda _: entries, writer)

    def change(self, lexicon_id: str, changed: Callable[[Entries], Entries], writer: Writer = OPERATOR) -> int:
        """Stores what becomes of the entries of a lexicon, none where it is new; returns its version.

        Raises:
            Conflict: another process writes it at this moment, or there are too many.
            NotTheOwner, ShareUsedUp, StoreUnavailable, StoreFull
        """
        assert LEXICON_ID.fullmatch(lexicon_id), "ids are validated before"
        store, mirror = self._writable()
        with self._writing:
            newest = store.get(NAMESPACE, lexicon_id)
            mirror.refresh()
            owner = writer.id if newest is None else owner_in(newest[1])
            writer.check(owner)
            others = {key: lexicon for key, lexicon in mirror.newest().items() if key != lexicon_id}
            if newest is None and len(others) >= MAX_LEXICONS:
                raise Conflict(f"there are {MAX_LEXICONS} lexicons, the largest number allowed; delete one first")
            entries = changed(() if newest is None else _decode(newest[1]).entries)
            assert 1 <= len(entries) <= MAX_ENTRIES
            value = _encode(entries, owner)
            SHARE.check(writer, ((lexicon.owner, lexicon.size) for lexicon in others.values()), len(value))
            replaces = newest[0] if newest else 0
            version = store.put(NAMESPACE, lexicon_id, value, replaces=replaces, keeps=KEPT_VERSIONS)
            mirror.refresh()
        return version

    def delete(self, lexicon_id: str, writer: Writer = OPERATOR) -> None:
        """Removes a lexicon. Requests that have begun are not affected.

        Raises:
            UnknownLexicon, NotTheOwner, StoreUnavailable
        """
        store, mirror = self._writable()
        with self._writing:
            newest = store.get(NAMESPACE, lexicon_id)
            if newest is not None:
                writer.check(owner_in(newest[1]))
            if newest is None or not store.delete(NAMESPACE, lexicon_id):
                raise UnknownLexicon("no such lexicon", param="id")
            mirror.refresh()

    def refresh(self) -> bool:
        """Reads what other processes have written; returns True when something changed.

        Raises:
            StoreUnavailable: the entries already read stay usable.
        """
        return False if self._mirror is None else self._mirror.refresh()

    def _writable(self) -> tuple[Store, Mirror[StoredLexicon]]:
        if self._store is None or self._mirror is None:
            raise StoreUnavailable("this service keeps no lexicons: it has no store")
        return self._store, self._mirror


def _encode(entries: Entries, owner: str) -> bytes:
    lines = [[entry.word, entry.kind, entry.value] for entry in entries]
    return json.dumps({"owner": owner, "entries": lines} if owner else lines, ensure_ascii=False).encode()


def _decode(value: bytes) -> StoredLexicon:
    """Decodes a record, a list of entries where it has no owner; raises ValueError for bytes that are no lexicon."""
    record = json.loads(value)
    try:
        lines = record["entries"] if isinstance(record, dict) else record
        entries = tuple(LexiconEntry(str(word), PronunciationKind(kind), str(sound)) for word, kind, sound in lines)
    except (TypeError, KeyError) as error:
        raise ValueError("not a lexicon") from error
    return StoredLexicon(entries, owner_of(record), len(value))
