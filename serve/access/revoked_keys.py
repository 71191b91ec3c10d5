"""Revoked keys: the ids that no older state of the store can bring back.

In:    ids of keys that were revoked
Out:   whether an id is one of them
Owns:  a file with a line for each, 11 bytes, beside the keys marker; where it cannot be written, this process' memory alone
Never: a key, or anything else about it
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

LOG = logging.getLogger("ray.serve.chattts")


class RevokedKeys:
    """Several processes of a machine may share the file: each only appends."""

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
