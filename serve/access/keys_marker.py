"""Keys marker: a file that records that a service has had keys, in case their store is lost.

In:    where that store is
Out:   whether there have been keys
Owns:  the file
Never: a key, or how many there are
"""

import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from pipeline.durable_file import write_durably
from pipeline.store.store import Store

LOG = logging.getLogger("ray.serve.chattts")

FORGET = "chattts-serve keys forget"


class RevokedKeys:
    """The ids of revoked keys, which no older state of the store can bring back: a file beside the marker, a line for each.

    Several processes of a machine may share the file: each only appends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ids: set[str] = set()
        self._size = -1  # of the file when it was last read
        self._can_write = True

    def ids(self) -> frozenset[str]:
        """Returns all ids; reads the file if it has changed."""
        try:
            size = self.path.stat().st_size
            if size != self._size:
                self._ids.update(self.path.read_text(encoding="ascii", errors="replace").split())
                self._size = size
        except OSError:
            pass  # there is none, or it cannot be read: what is in memory holds
        return frozenset(self._ids)

    def add(self, ids: Iterable[str]) -> None:
        """Remembers ids; on disk once this returns, if the file can be written."""
        if not (new := set(ids) - self.ids()):
            return
        self._ids |= new
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write("".join(f"{key_id}\n" for key_id in sorted(new)))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if self._can_write:
                LOG.warning(
                    "keys: %s cannot be written (%s): an older state of the store brings revoked keys back once every replica "
                    "has restarted",
                    self.path,
                    error.strerror,
                )
            self._can_write = False  # logged once


class KeysMarker:
    """Written with the first key and by every replica that sees one; removed by `chattts-serve keys forget` alone."""

    def __init__(self, path: Path, store: str) -> None:
        """
        Args:
            store: where the store is, as an operator would look for it.
        """
        self.path = path
        self._store = store

    @property
    def is_set(self) -> bool:
        """True if there have been keys, or if the file cannot be looked at."""
        try:
            self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def set(self) -> None:
        """Records that there are keys; on disk once this returns.

        Raises:
            OSError
        """
        if self.is_set:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = f"Keys were created in {self._store}. Without them no request is served, until: {FORGET} --store {self._store}\n"
        write_durably(self.path, text.encode(), mode=0o600)

    def remove(self) -> None:
        """Removes the record.

        Raises:
            OSError
        """
        self.path.unlink(missing_ok=True)


def marker_for(store: Store, home: Path) -> KeysMarker:
    """Returns the marker of a store."""
    return KeysMarker(_beside(store, home, "keys-of"), store.place)


def revoked_of(store: Store, home: Path) -> RevokedKeys:
    """Returns the revoked keys of a store."""
    return RevokedKeys(_beside(store, home, "revoked-of"))


def _beside(store: Store, home: Path, prefix: str) -> Path:
    """Returns a path beside the store's file, not matched by `store.sqlite*`, so that no backup has it; for Redis in `home`."""
    if "://" in store.place:
        return home / f"{prefix}-{hashlib.sha256(store.place.encode()).hexdigest()[:16]}"
    path = Path(store.place)
    return path.with_name(f"{prefix}-{path.name}")
