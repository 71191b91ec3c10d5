"""Keys marker: a file that records that a service has had keys, in case their store is lost.

In:    where that store is
Out:   whether there have been keys
Owns:  the file
Never: a key, or how many there are
"""

import hashlib
from pathlib import Path

from pipeline.durable_file import write_durably
from pipeline.store.store import Store
from serve.access.revoked_keys import RevokedKeys

FORGET = "chattts-serve keys forget"


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


def _beside(store: Store, home: Path, what: str) -> Path:
    """Returns a path beside the store's file, not matched by `store.sqlite*`, so that no backup has it; for Redis in `home`."""
    if "://" in store.place:
        return home / f"{what}-{hashlib.sha256(store.place.encode()).hexdigest()[:16]}"
    path = Path(store.place)
    return path.with_name(f"{what}-{path.name}")
