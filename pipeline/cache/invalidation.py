"""PurgeGenerations: what has been purged. A purge makes the next epoch, and every key has its generations in it.

In:    a store, or none: then a purge is known to this process alone
Out:   (everybody's epoch, a tenant's epoch)
Owns:  a mirror of the store's namespace
Never: entries
"""

import hashlib

from pipeline.errors import Conflict
from pipeline.store.mirror import Mirror
from pipeline.store.store import Store

NAMESPACE = "cache"
EVERYBODY = "everybody"


class PurgeGenerations:
    """Counts purges. Blocking where it says so: the store does."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._mirror = None if store is None else Mirror(store, NAMESPACE, lambda key, version, value: version)
        self._own: dict[str, int] = {}

    def of(self, tenant: str) -> tuple[int, int]:
        """Everybody's and the tenant's; never waits."""
        return self._generation(EVERYBODY), self._generation(_record(tenant))

    def refresh(self) -> bool:
        """Take over other processes' purges; True when there are some. Blocking.

        Raises:
            StoreUnavailable
        """
        return self._mirror is not None and self._mirror.refresh()

    def purge(self, tenant: str | None) -> None:
        """Begin the next epoch, of everybody for None. Blocking.

        Raises:
            StoreUnavailable: nothing has been purged.
        """
        record = EVERYBODY if tenant is None else _record(tenant)
        if self._store is None or self._mirror is None:
            self._own[record] = self._own.get(record, 0) + 1
            return
        done = False
        while not done:
            self._mirror.refresh()
            try:
                self._store.put(NAMESPACE, record, b"", replaces=self._generation(record))
                done = True
            except Conflict:
                # Somebody else purges at this moment, perhaps before the last entry that this purge is about: once more.
                continue
        self._mirror.refresh()

    def _generation(self, record: str) -> int:
        found = self._own.get(record) if self._mirror is None else self._mirror.get(record)
        return found or 0


def _record(tenant: str) -> str:
    """A name the store takes, for any tenant."""
    return f"tenant-{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"
