"""SQLite: a store in one file, for all processes of one machine.

In:    keys and bytes, as store.py defines them
Out:   versions and changes
Owns:  the file, and the reserve beside it
Never: an open connection between two calls

A rollback journal, not a write-ahead log: reading needs no disk space at all, and deleting some pages of journal, which the
reserve has (pipeline/store/reserve.py). So on a full disk only growth fails: records are read and deleted, and what fits into
the space of deleted records is written. A process killed while it writes leaves the version before; a write
returns once it is on disk (synchronous=FULL). Readers wait for a writer's last milliseconds.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from pipeline.errors import Conflict, StoreFull, StoreUnavailable
from pipeline.store.reserve import Reserve
from pipeline.store.store import START, Changes, Entry, check_address, check_value

T = TypeVar("T")
Change = Callable[[sqlite3.Connection, int], T]
"""the work of a write transaction, given its revision"""

BUSY_TIMEOUT_S = 5.0
SCHEMA = """
BEGIN IMMEDIATE;
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
INSERT OR IGNORE INTO store VALUES (1, lower(hex(randomblob(8))));
COMMIT;
"""
NEXT_REVISION = """
INSERT INTO namespaces VALUES (?, 1) ON CONFLICT DO UPDATE SET revision = revision + 1 RETURNING revision
"""

FULL = (
    "the store's disk is full; nothing was changed. Delete voices or lexicons, which works on a full disk and makes room for "
    "others, or make room on the disk"
)
REPLACE = "restore it from a backup, or move it away to begin with an empty store"
ADVICE = {
    sqlite3.SQLITE_NOTADB: REPLACE,
    sqlite3.SQLITE_CORRUPT: REPLACE,
    sqlite3.SQLITE_CANTOPEN: (
        "it must be a file that this user may read and write, in a folder where it may make files; one that was removed comes "
        "back from a backup, or empty with the next start"
    ),
    sqlite3.SQLITE_READONLY: "it, and the folder it is in, must be writable for this user",
    sqlite3.SQLITE_BUSY: f"another process holds it for more than {BUSY_TIMEOUT_S:.0f} s; try again",
    sqlite3.SQLITE_ERROR: REPLACE,
}


class SqliteStore:
    """A store.Store in a file. The first call opens it: the file may be repaired or unlocked until then."""

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self._path = path
        self._reserve = Reserve(path.with_name(f"{path.name}-reserve"))
        self._is_made = False

    def put(self, namespace: str, key: str, value: bytes, *, replaces: int, keeps: int) -> int:
        """Writes the next version of a key; raises as store.Store says."""
        check_address(namespace, key)
        check_value(value)

        def write(connection: sqlite3.Connection, revision: int) -> int:
            version, live = _head(connection, namespace, key)
            newest = version if live else 0
            if newest != replaces:
                raise Conflict(f"version {newest} is the newest there is, not {replaces}; read it again and repeat the change")
            version += 1
            older = "DELETE FROM versions WHERE namespace = ? AND key = ? AND version <= ?"
            connection.execute(older, (namespace, key, version - keeps))  # first: the new one may need their space
            connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?)", (namespace, key, version, value))
            connection.execute("REPLACE INTO heads VALUES (?, ?, ?, 1, ?)", (namespace, key, version, revision))
            return version

        return self._change(namespace, write)

    def delete(self, namespace: str, key: str) -> bool:
        """Removes a key and all its versions; returns False when it is not there."""
        check_address(namespace, key)

        def remove(connection: sqlite3.Connection, revision: int) -> bool:
            version, live = _head(connection, namespace, key)
            if live:
                connection.execute("DELETE FROM versions WHERE namespace = ? AND key = ?", (namespace, key))
                connection.execute("REPLACE INTO heads VALUES (?, ?, ?, 0, ?)", (namespace, key, version, revision))
            return live

        return self._change(namespace, remove)

    def get(self, namespace: str, key: str) -> tuple[int, bytes] | None:
        """Returns the newest version and its value; None when the key is not there."""
        check_address(namespace, key)
        newest = "SELECT version, value FROM versions WHERE namespace = ? AND key = ? ORDER BY version DESC LIMIT 1"
        with self._readable_errors(), self._connected() as connection:
            found = connection.execute(newest, (namespace, key)).fetchone()
        return None if found is None else (int(found[0]), bytes(found[1]))

    def changes(self, namespace: str, since: str = START) -> Changes:
        """Returns every key that changed since a position, in one consistent view."""
        epoch, _, revision = since.partition(":")
        with self._readable_errors(), self._connected() as connection:
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
        """Does nothing: no connection outlives a call."""

    def _change(self, namespace: str, change: Change[T]) -> T:
        """Runs one write; on a full disk once more, with the reserve's space for its journal and a file that must not grow."""
        try:
            return self._transact(namespace, change, may_grow=True)
        except StoreFull:
            with self._reserve.given_back():
                return self._transact(namespace, change, may_grow=False)

    def _transact(self, namespace: str, change: Change[T], *, may_grow: bool) -> T:
        """Runs one write transaction; an exception rolls it back."""
        with self._readable_errors(), self._connected() as connection:
            if not (may_grow and self._reserve.is_kept()):
                connection.execute("PRAGMA max_page_count=1")  # SQLite takes the pages there are for the least
                connection.execute("PRAGMA secure_delete=OFF")  # wiping deleted pages would put all of them into the journal
            connection.execute("BEGIN IMMEDIATE")
            try:
                (revision,) = connection.execute(NEXT_REVISION, (namespace,)).fetchone()
                done = change(connection, int(revision))
                connection.execute("COMMIT")
                return done
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        # One connection per call: opening costs a tenth of a millisecond, and none is ever in the wrong thread.
        if not self._is_made:
            self._make()
        # rw: a removed file is an error; opening it must not create an empty one.
        with _connection(f"file:{quote(str(self._path))}?mode=rw") as connection:
            yield connection

    def _make(self) -> None:
        """Creates the tables if there are none."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with _connection(f"file:{quote(str(self._path))}?mode=rwc") as connection:
            if connection.execute("SELECT name FROM sqlite_master WHERE name = 'store'").fetchone() is None:
                connection.executescript(SCHEMA)
        self._is_made = True

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest says where it happened
            if code == sqlite3.SQLITE_FULL:
                raise StoreFull(FULL, place=self.place) from error
            advice = ADVICE.get(code, "try again")
            raise StoreUnavailable(f"the store's file cannot be used: {error}; {advice}", place=self.place) from error
        except OSError as error:
            raise StoreUnavailable(f"the store's file cannot be used: {error.strerror}", place=self.place) from error


@contextmanager
def _connection(uri: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(uri, timeout=BUSY_TIMEOUT_S, isolation_level=None, uri=True)
    try:
        connection.execute("PRAGMA journal_mode=TRUNCATE")
        connection.execute("PRAGMA synchronous=FULL")
        yield connection
    finally:
        connection.close()


def _head(connection: sqlite3.Connection, namespace: str, key: str) -> tuple[int, bool]:
    """Returns the last version ever written and whether the key is there."""
    of_key = "SELECT version, live FROM heads WHERE namespace = ? AND key = ?"
    row = connection.execute(of_key, (namespace, key)).fetchone()
    return (0, False) if row is None else (int(row[0]), bool(row[1]))
