"""Invalidation: purge generations, two numbers in every cache key. A purge raises one, and then no older entry is found.

In:    a store, or none: then a purge affects this process only
Out:   (generation of all tenants, generation of one tenant)
Owns:  a mirror of the store's namespace
Never: entries
"""

import hashlib

from pipeline.errors import Conflict
from pipeline.store.mirror import Mirror
from pipeline.store.store import Store

NAMESPACE = "cache"
ALL_TENANTS = "everybody"  # name of the store's record


class PurgeGenerations:
    """Counts purges, for all tenants together and per tenant: a number in each cache key, so older entries are not found."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._mirror = None if store is None else Mirror(store, NAMESPACE, lambda key, version, value: version)
        self._own: dict[str, int] = {}

    def of(self, tenant: str) -> tuple[int, int]:
        """Returns the generations (of all tenants, of this tenant), without waiting."""
        return self._generation(ALL_TENANTS), self._generation(_record(tenant))

    def refresh(self) -> bool:
        """Reads the purges of other processes. Returns True if there are new ones. Blocking.

        Raises:
            StoreUnavailable
        """
        return self._mirror is not None and self._mirror.refresh()

    def purge(self, tenant: str | None) -> None:
        """Raises the generation of one tenant, or of all for None. Blocking.

        Raises:
            StoreUnavailable: nothing has been purged.
        """
        record = ALL_TENANTS if tenant is None else _record(tenant)
        if self._store is None or self._mirror is None:
            self._own[record] = self._own.get(record, 0) + 1
            return
        done = False
        while not done:
            self._mirror.refresh()
            try:
                self._store.put(NAMESPACE, record, b"", replaces=self._generation(record), keeps=1)
                done = True
            except Conflict:
                # Another process is purging too, perhaps from before the newest entry that this purge must cover: try again.
                continue
        self._mirror.refresh()

    def _generation(self, record: str) -> int:
        generation = self._own.get(record) if self._mirror is None else self._mirror.get(record)
        return generation or 0


def _record(tenant: str) -> str:
    """Returns a valid record name for any tenant."""
    return f"tenant-{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"
