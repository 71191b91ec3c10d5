"""SQLite: a store in one file, for all processes of one machine.

In:    see store.py
Out:   see store.py
Owns:  the file
Never: an open connection between two calls

Write-ahead log: readers never wait for writers, a process killed while it writes leaves the version before. A write
returns once it is on disk (synchronous=FULL).
"""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import Conflict, StoreFull, StoreUnavailable
from pipeline.store.store import START, Changes, Entry, check_address, check_value

BUSY_TIMEOUT_S = 5.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS store (id INTEGER PRIMARY KEY CHECK (id = 1), epoch TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS namespaces (namespace TEXT PRIMARY KEY, revision INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heads (
    namespace TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, live INTEGER NOT NULL, revision INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS heads_by_revision ON heads (namespace, revision);
CREATE TABLE IF NOT EXISTS versions (
    namespace TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (namespace, key, version)
) STRICT;
"""
NEXT_REVISION = """
INSERT INTO namespaces VALUES (?, 1) ON CONFLICT DO UPDATE SET revision = revision + 1 RETURNING revision
"""


class SqliteStore:
    """See store.Store."""

    def __init__(self, path: Path) -> None:
        """Make the file where there is none.

        Raises:
            StoreUnavailable: it cannot be made or is no store.
        """
        self._path = path
        with _readable_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._connected() as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.executescript(SCHEMA)
                # Two processes may make the file together: the first epoch stays.
                connection.execute("INSERT OR IGNORE INTO store VALUES (1, ?)", (secrets.token_hex(8),))

    def put(self, namespace: str, key: str, value: bytes, *, replaces: int) -> int:
        """See store.Store."""
        check_address(namespace, key)
        check_value(value)
        with self._changing(namespace) as (connection, revision):
            version, live = _head(connection, namespace, key)
            newest = version if live else 0
            if newest != replaces:
                raise Conflict(f"version {newest} is the newest there is, not {replaces}; read it again and repeat the change")
            version += 1
            connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?)", (namespace, key, version, value))
            connection.execute("REPLACE INTO heads VALUES (?, ?, ?, 1, ?)", (namespace, key, version, revision))
            return version

    def delete(self, namespace: str, key: str) -> bool:
        """See store.Store."""
        check_address(namespace, key)
        with self._changing(namespace) as (connection, revision):
            version, live = _head(connection, namespace, key)
            if live:
                connection.execute("DELETE FROM versions WHERE namespace = ? AND key = ?", (namespace, key))
                connection.execute("REPLACE INTO heads VALUES (?, ?, ?, 0, ?)", (namespace, key, version, revision))
            return live

    def get(self, namespace: str, key: str) -> tuple[int, bytes] | None:
        """See store.Store."""
        check_address(namespace, key)
        newest = "SELECT version, value FROM versions WHERE namespace = ? AND key = ? ORDER BY version DESC LIMIT 1"
        with _readable_errors(), self._connected() as connection:
            found = connection.execute(newest, (namespace, key)).fetchone()
        return None if found is None else (int(found[0]), bytes(found[1]))

    def changes(self, namespace: str, since: str = START) -> Changes:
        """See store.Store."""
        epoch, _, revision = since.partition(":")
        with _readable_errors(), self._connected() as connection:
            connection.execute("BEGIN")  # one view for the three questions
            (own_epoch,) = connection.execute("SELECT epoch FROM store").fetchone()
            row = connection.execute("SELECT revision FROM namespaces WHERE namespace = ?", (namespace,)).fetchone()
            newest = 0 if row is None else int(row[0])
            known = int(revision) if epoch == own_epoch and int(revision) <= newest else None
            keys: dict[str, list[tuple[int, bytes]]] = {}
            if known != newest:
                after = "SELECT key, live FROM heads WHERE namespace = ? AND revision > ? ORDER BY revision"
                for key, live in connection.execute(after, (namespace, known or 0)):
                    if live or known is not None:
                        keys[key] = []
                if keys:
                    of_key = "SELECT version, value FROM versions WHERE namespace = ? AND key = ? ORDER BY version"
                    for key, versions in keys.items():
                        versions += connection.execute(of_key, (namespace, key)).fetchall()
            connection.execute("COMMIT")
        entries = tuple(Entry(key, tuple(versions)) for key, versions in keys.items())
        return Changes(f"{own_epoch}:{newest}", entries, is_whole=known is None)

    def close(self) -> None:
        """See store.Store: there is nothing to let go of."""

    @contextmanager
    def _changing(self, namespace: str) -> Iterator[tuple[sqlite3.Connection, int]]:
        """One write transaction and the revision it makes; an exception undoes it."""
        with _readable_errors(), self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                step = (
                    "INSERT INTO namespaces VALUES (?, 1) ON CONFLICT DO UPDATE SET revision = revision + 1 RETURNING revision"
                )
                (revision,) = connection.execute(step, (namespace,)).fetchone()
                yield connection, int(revision)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        # A connection a call: opening costs a tenth of a millisecond, and none is ever in the wrong thread.
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            yield connection
        finally:
            connection.close()


def _head(connection: sqlite3.Connection, namespace: str, key: str) -> tuple[int, bool]:
    """Last version ever written and whether the key is there."""
    of_key = "SELECT version, live FROM heads WHERE namespace = ? AND key = ?"
    row = connection.execute(of_key, (namespace, key)).fetchone()
    return (0, False) if row is None else (int(row[0]), bool(row[1]))


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise StoreFull("the store's disk is full; nothing was changed") from error
        raise StoreUnavailable(f"the store's file cannot be used ({type(error).__name__}); nothing was changed") from error
