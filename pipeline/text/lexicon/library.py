"""Lexicon library: stored lists of words and their sounds, by id.

In:    ids, entries to store
Out:   entries
Owns:  a mirror of the store
Never: waiting for the store during a lookup

Lookups read memory only. Writing, deleting and refresh() block; call them from a thread.
"""

import json
import re

from pipeline.errors import Conflict, StoreUnavailable, UnknownLexicon
from pipeline.store.mirror import Mirror
from pipeline.store.store import Store
from pipeline.types import LexiconEntry, PronunciationKind

NAMESPACE = "lexicons"
LEXICON_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
MAX_ENTRIES = 1000
MAX_LEXICONS = 1000

Entries = tuple[LexiconEntry, ...]


class LexiconLibrary:
    """The stored lexicons, as of the last refresh."""

    def __init__(self, store: Store | None = None) -> None:
        """
        Args:
            store: None: nothing can be stored.
        """
        self._store = store
        self._mirror = None if store is None else Mirror(store, NAMESPACE, lambda key, version, value: _decode(value))

    def get(self, lexicon_id: str) -> Entries:
        """Returns the entries of a lexicon.

        Raises:
            UnknownLexicon
        """
        found = None if self._mirror is None else self._mirror.get(lexicon_id)
        if found is None:
            raise UnknownLexicon("no such lexicon; PUT /v1/lexicons/{id} creates one", param="lexicon")
        return found

    def put(self, lexicon_id: str, entries: Entries) -> int:
        """Stores a lexicon in place of an earlier one; returns its version.

        Raises:
            Conflict: another process writes it at this moment, or there are too many.
            StoreUnavailable, StoreFull
        """
        assert LEXICON_ID.fullmatch(lexicon_id), "ids are validated before"
        assert 1 <= len(entries) <= MAX_ENTRIES
        store, mirror = self._writable()
        newest = store.get(NAMESPACE, lexicon_id)
        if newest is None and len(mirror.newest()) >= MAX_LEXICONS:
            raise Conflict(f"there are {MAX_LEXICONS} lexicons, the largest number allowed; delete one first")
        replaces = newest[0] if newest else 0
        version = store.put(NAMESPACE, lexicon_id, _encode(entries), replaces=replaces, keeps=1)
        self.refresh()
        return version

    def delete(self, lexicon_id: str) -> None:
        """Removes a lexicon. Requests that have begun are not affected.

        Raises:
            UnknownLexicon, StoreUnavailable
        """
        store, _ = self._writable()
        if not store.delete(NAMESPACE, lexicon_id):
            raise UnknownLexicon("no such lexicon", param="id")
        self.refresh()

    def refresh(self) -> bool:
        """Reads what other processes have written; returns True when something changed.

        Raises:
            StoreUnavailable: the entries already read stay usable.
        """
        return False if self._mirror is None else self._mirror.refresh()

    def _writable(self) -> tuple[Store, Mirror[Entries]]:
        if self._store is None or self._mirror is None:
            raise StoreUnavailable("this service keeps no lexicons: it has no store")
        return self._store, self._mirror


def _encode(entries: Entries) -> bytes:
    return json.dumps([[entry.word, entry.kind, entry.value] for entry in entries], ensure_ascii=False).encode()


def _decode(value: bytes) -> Entries:
    """Decodes a record; raises ValueError for bytes that are no lexicon, as Mirror requires."""
    try:
        return tuple(LexiconEntry(str(word), PronunciationKind(kind), str(sound)) for word, kind, sound in json.loads(value))
    except TypeError as error:
        raise ValueError("not a lexicon") from error
