"""SQLite: a store in one file, for all processes of one machine.

In:    keys and bytes, as store.py defines them
Out:   versions and changes
Owns:  the file, and the reserve beside it
Never: an open connection between two calls

A rollback journal, not a write-ahead log: reading needs no disk space at all, and deleting some pages of journal, which the
reserve has (pipeline/store/reserve.py). So on a full disk only growth fails: records are read and deleted, and what fits into
the space of deleted records is written. A process killed while it writes leaves the version before; a write
returns once it is on disk (synchronous=FULL). Calls of one process take turns. A file that another process holds is a refusal
at once as soon as one call has waited for it in vain.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from pipeline.errors import StoreFull, StoreUnavailable
from pipeline.store.breaker import Breaker, Open
from pipeline.store.reserve import Reserve
from pipeline.store.store import (
    FORGOTTEN_AT_ONCE,
    MAX_NAMESPACE_BYTES,
    REVISIONS_KEPT,
    START,
    Changes,
    Entry,
    check_address,
    check_value,
    conflict,
    namespace_full,
    note_set_back,
)

T = TypeVar("T")
Change = Callable[[sqlite3.Connection, int], T]
"""the work of a write transaction, given its revision"""

BUSY_TIMEOUT_S = 2.0  # for which a call waits while another process holds the file
HELD_TIMEOUT_S = 0.2  # once a call has waited in vain: for one call, and all others do not wait
TURN_TIMEOUT_S = 30.0  # for which a call waits for those of its own process: they may be slow, and hold nothing for ever
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
# A row for each of the latest revisions, all made at once and then changed in place: a full disk takes that.
NONCES = """
CREATE TABLE IF NOT EXISTS nonces (
    namespace TEXT NOT NULL, slot INTEGER NOT NULL, revision INTEGER NOT NULL, nonce BLOB NOT NULL,
    PRIMARY KEY (namespace, slot)
) STRICT, WITHOUT ROWID
"""
# Of the deleted keys that are forgotten, per namespace: the newest revision, and the newest version.
FORGOTTEN = """
CREATE TABLE IF NOT EXISTS forgotten (
    namespace TEXT PRIMARY KEY, revision INTEGER NOT NULL, version INTEGER NOT NULL
) STRICT, WITHOUT ROWID
"""
DELETED = "CREATE INDEX IF NOT EXISTS deleted_heads ON heads (namespace, revision) WHERE live = 0"
NEXT_REVISION = """
INSERT INTO namespaces VALUES (?, 1) ON CONFLICT DO UPDATE SET revision = revision + 1 RETURNING revision
"""

FULL = (
    "the store's disk is full; nothing was changed. Delete voices or lexicons, which works on a full disk and makes room for "
    "others, or make room on the disk"
)
CANNOT = "the store's file cannot be used: {}"
REPLACE = "restore it from a backup, or move it away to begin with an empty store"
BUSY = f"another process holds it for more than {BUSY_TIMEOUT_S:.0f} s; try again"
SLOW = f"calls of this process have not ended in {TURN_TIMEOUT_S:.0f} s; try again"
ADVICE = {
    sqlite3.SQLITE_NOTADB: REPLACE,
    sqlite3.SQLITE_CORRUPT: REPLACE,
    sqlite3.SQLITE_CANTOPEN: (
        "it must be a file that this user may read and write, in a folder where it may make files; one that was removed comes "
        "back from a backup, or empty with the next start"
    ),
    sqlite3.SQLITE_READONLY: "it, and the folder it is in, must be writable for this user",
    sqlite3.SQLITE_BUSY: BUSY,
    sqlite3.SQLITE_ERROR: REPLACE,
}


class SqliteStore:
    """A store.Store in a file. The first call opens it: the file may be repaired or unlocked until then."""

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self.set_back: dict[str, str] = {}
        self._path = path
        self._reserve = Reserve(path.with_name(f"{path.name}-reserve"))
        self._is_made = False
        # One call at a time: SQLite lets threads of one process wait for each other as for strangers, and in no order.
        self._breaker = Breaker(slow_s=TURN_TIMEOUT_S, most_in_flight=1)

    def put(self, namespace: str, key: str, value: bytes, *, replaces: int, keeps: int) -> int:
        """Writes the next version of a key; raises as store.Store says."""
        check_address(namespace, key)
        check_value(value)

        def write(connection: sqlite3.Connection, revision: int) -> int:
            version, live = _head(connection, namespace, key)
            version = version or _forgotten(connection, namespace)[1]
            newest = version if live else 0
            if newest != replaces:
                raise conflict(newest, replaces)
            version += 1
            bytes_before = _bytes(connection, namespace)
            older = "DELETE FROM versions WHERE namespace = ? AND key = ? AND version <= ?"
            connection.execute(older, (namespace, key, version - keeps))  # first: the new one may need their space
            bytes_after = _bytes(connection, namespace) + len(value)
            if bytes_after > max(bytes_before, MAX_NAMESPACE_BYTES):
                raise StoreFull(namespace_full(namespace), place=self.place)
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
        with self._connected() as connection:
            row = connection.execute(newest, (namespace, key)).fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def changes(self, namespace: str, since: str = START) -> Changes:
        """Returns every key that changed since a position, in one consistent view."""
        with self._connected() as connection:
            connection.execute("BEGIN")  # one view for all questions
            (epoch,) = connection.execute("SELECT epoch FROM store").fetchone()
            row = connection.execute("SELECT revision FROM namespaces WHERE namespace = ?", (namespace,)).fetchone()
            newest = 0 if row is None else int(row[0])
            position = f"{epoch}:{newest}:{_nonce(connection, namespace, newest)}"
            known, is_set_back = (newest, False) if since == position else _known(connection, namespace, since, epoch, newest)
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
        if is_set_back:
            note_set_back(self, namespace)
        entries = tuple(Entry(key, tuple(versions)) for key, versions in keys.items())
        return Changes(position, entries, is_whole=known is None, is_set_back=is_set_back)

    def probe(self) -> None:
        """Begins a write and takes it back; raises as store.Store says."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")

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
        with self._connected() as connection:
            if not (may_grow := may_grow and self._reserve.is_kept()):
                connection.execute("PRAGMA max_page_count=1")  # SQLite takes the pages there are for the least
                connection.execute("PRAGMA secure_delete=OFF")  # wiping deleted pages would put all of them into the journal
            connection.execute("BEGIN IMMEDIATE")
            try:
                (revision,) = connection.execute(NEXT_REVISION, (namespace,)).fetchone()
                _note(connection, namespace, int(revision), may_grow=may_grow)
                done = change(connection, int(revision))
                if may_grow:
                    _forget_deleted(connection, namespace, int(revision))
                connection.execute("COMMIT")
                return done
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The block asks the file; its errors become those of store.Store."""
        try:
            with self._breaker.question():
                is_held = False
                try:
                    with self._connection() as connection:
                        yield connection
                except sqlite3.Error as error:
                    is_held = _code(error) == sqlite3.SQLITE_BUSY
                    raise
                finally:
                    (self._breaker.failed if is_held else self._breaker.answered)()
        except Open:
            reason = f"database is locked; {BUSY}" if self._breaker.is_silent else SLOW
            raise StoreUnavailable(CANNOT.format(reason), place=self.place) from None
        except sqlite3.Error as error:
            code = _code(error)
            if code == sqlite3.SQLITE_FULL:
                raise StoreFull(FULL, place=self.place) from error
            raise StoreUnavailable(CANNOT.format(f"{error}; {ADVICE.get(code, 'try again')}"), place=self.place) from error
        except OSError as error:
            raise StoreUnavailable(CANNOT.format(error.strerror), place=self.place) from error

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # One connection per call: opening costs a tenth of a millisecond, and none is ever in the wrong thread.
        wait_s = HELD_TIMEOUT_S if self._breaker.is_silent else BUSY_TIMEOUT_S
        if not self._is_made:
            self._make(wait_s)
        # rw: a removed file is an error; opening it must not create an empty one.
        with _connection(f"file:{quote(str(self._path))}?mode=rw", wait_s) as connection:
            yield connection

    def _make(self, wait_s: float) -> None:
        """Creates the tables if there are none."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with _connection(f"file:{quote(str(self._path))}?mode=rwc", wait_s) as connection:
            if connection.execute("SELECT name FROM sqlite_master WHERE name = 'store'").fetchone() is None:
                connection.executescript(SCHEMA)
        self._is_made = True


@contextmanager
def _connection(uri: str, wait_s: float) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(uri, timeout=wait_s, isolation_level=None, uri=True)
    try:
        connection.execute("PRAGMA journal_mode=TRUNCATE")
        connection.execute("PRAGMA synchronous=FULL")
        yield connection
    finally:
        connection.close()


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest says where it happened


def _head(connection: sqlite3.Connection, namespace: str, key: str) -> tuple[int, bool]:
    """Returns the last version ever written and whether the key is there."""
    of_key = "SELECT version, live FROM heads WHERE namespace = ? AND key = ?"
    row = connection.execute(of_key, (namespace, key)).fetchone()
    return (0, False) if row is None else (int(row[0]), bool(row[1]))


def _bytes(connection: sqlite3.Connection, namespace: str) -> int:
    """Returns what the values of a namespace take; 0 if the whole file is too small for the limit to matter."""
    (pages,), (page_bytes,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    if pages * page_bytes <= MAX_NAMESPACE_BYTES:
        return 0
    total = "SELECT COALESCE(SUM(LENGTH(value)), 0) FROM versions WHERE namespace = ?"
    return int(connection.execute(total, (namespace,)).fetchone()[0])


def _note(connection: sqlite3.Connection, namespace: str, revision: int, *, may_grow: bool) -> None:
    """Draws the nonce of a revision."""
    if may_grow:
        connection.execute(NONCES)
    elif not _has_table(connection, "nonces"):
        return
    of_slot = "UPDATE nonces SET revision = ?, nonce = randomblob(8) WHERE namespace = ? AND slot = ?"
    change = (revision, namespace, revision % REVISIONS_KEPT)
    if not connection.execute(of_slot, change).rowcount and may_grow:
        empty = "INSERT INTO nonces VALUES (?, ?, 0, zeroblob(8))"
        connection.executemany(empty, ((namespace, slot) for slot in range(REVISIONS_KEPT)))
        connection.execute(of_slot, change)


def _nonce(connection: sqlite3.Connection, namespace: str, revision: int) -> str:
    """Returns the nonce of a revision; empty if it has none any more."""
    if not _has_table(connection, "nonces"):
        return ""
    of_slot = "SELECT hex(nonce) FROM nonces WHERE namespace = ? AND slot = ? AND revision = ?"
    row = connection.execute(of_slot, (namespace, revision % REVISIONS_KEPT, revision)).fetchone()
    return "" if row is None or revision == 0 else str(row[0])


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def _forgotten(connection: sqlite3.Connection, namespace: str) -> tuple[int, int]:
    """Returns the newest revision and the newest version of the deleted keys that are forgotten; 0 where there are none."""
    if not _has_table(connection, "forgotten"):
        return 0, 0
    row = connection.execute("SELECT revision, version FROM forgotten WHERE namespace = ?", (namespace,)).fetchone()
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def _forget_deleted(connection: sqlite3.Connection, namespace: str, newest: int) -> None:
    """Forgets the oldest of the deleted keys, whose end every reader knows that does not read everything."""
    connection.execute(FORGOTTEN)
    connection.execute(DELETED)
    old = (
        "SELECT key, revision, version FROM heads WHERE namespace = ? AND live = 0 AND revision <= ? ORDER BY revision LIMIT ?"
    )
    keys = connection.execute(old, (namespace, newest - REVISIONS_KEPT, FORGOTTEN_AT_ONCE)).fetchall()
    if keys:
        connection.executemany("DELETE FROM heads WHERE namespace = ? AND key = ?", ((namespace, key) for key, *_ in keys))
        floor = max(_forgotten(connection, namespace)[1], *(version for *_, version in keys))
        connection.execute("REPLACE INTO forgotten VALUES (?, ?, ?)", (namespace, keys[-1][1], floor))


def _known(connection: sqlite3.Connection, namespace: str, since: str, epoch: str, newest: int) -> tuple[int | None, bool]:
    """Returns the revision of a position, None if it is not one of this store any more; and whether the store was set back."""
    of, revision, nonce = [*since.split(":"), "", ""][:3]
    if of != epoch:
        return None, of != ""
    if int(revision) > newest:
        return None, True
    own = _nonce(connection, namespace, int(revision))
    if own == nonce:
        return (int(revision) if int(revision) >= _forgotten(connection, namespace)[0] else None), False
    return None, own != "" or int(revision) == newest
