"""Trouble with the disk and the file of a store, or a store that hangs: nothing is lost or waits, and errors say what to do."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from pipeline.audio.formats import audio_format
from pipeline.errors import StoreFull, StoreUnavailable
from pipeline.store import sqlite
from pipeline.store.breaker import MOST_IN_FLIGHT, SLOW_S, Breaker, Open
from pipeline.store.mirror import Mirror
from pipeline.store.redis_store import RedisStore
from pipeline.store.reserve import RESERVE_BYTES
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store
from pipeline.store.threads import ask_store
from serve.speech.speak import Encoding
from tests.support.clock import HeldClock
from tests.support.disks import small_disk
from tests.support.services import RedisServer

ROOT = Path(__file__).resolve().parents[4]
NOBODY = 65534


# A full disk.

FULL_DISK = """
import os, sys
from pathlib import Path
from pipeline.errors import StoreFull
from pipeline.store.sqlite import SqliteStore

folder = Path(sys.argv[1])
store = SqliteStore(folder / "store.sqlite")
written = {}
try:
    while True:
        value = os.urandom(20_000)
        store.put("voices", f"v{len(written)}", value, replaces=0, keeps=9)
        written[f"v{len(written)}"] = value
except StoreFull as error:
    message = str(error)
assert str(folder / "store.sqlite") in message and "Delete voices" in message, message
assert len(written) > 20, len(written)

try:  # another process takes the very last byte
    with open(folder / "filler", "wb", buffering=0) as filler:
        while filler.write(os.urandom(512)):
            pass
except OSError:
    pass
assert os.statvfs(folder).f_bavail == 0

fresh = SqliteStore(folder / "store.sqlite")  # a replica that starts now
assert {entry.key: entry.versions[-1][1] for entry in fresh.changes("voices").entries} == written

for number in (3, 4, 5, 6):
    assert fresh.delete("voices", f"v{number}")
    del written[f"v{number}"]
fresh.put("voices", "new", b"n" * 50_000, replaces=0, keeps=9)  # into the room of three of them
written["new"] = b"n" * 50_000
try:
    fresh.put("voices", "too-large", os.urandom(60_000), replaces=0, keeps=9)
    raise SystemExit("there was no room for it")
except StoreFull:
    pass
for key in list(written):  # every one of them, without an end of the reserve
    assert {entry.key: entry.versions[-1][1] for entry in store.changes("voices").entries} == written
    assert store.delete("voices", key)
    del written[key]
print("held")
"""


@pytest.mark.slow
def test_a_full_disk_can_be_read_and_deleted_from(tmp_path: Path):
    prefix = small_disk(str(tmp_path), "2m")
    if prefix is None:
        pytest.skip("no mount namespace here; the next test fills a file in place of a disk")
    done = subprocess.run(
        [*prefix, sys.executable, "-c", FULL_DISK, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "held\n", done.stderr


def test_a_file_that_may_not_grow_changes_nothing_and_takes_deletions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = SqliteStore(tmp_path / "store.sqlite")
    store.put("voices", "anna", bytes(50_000), replaces=0, keeps=9)
    before = store.changes("voices")
    connect = sqlite3.connect

    def small(*args: object, **options: object) -> object:
        connection = connect(*args, **options)
        connection.execute("PRAGMA max_page_count=1")  # SQLite rounds it up to the pages there are: no room for one more
        return connection

    monkeypatch.setattr("pipeline.store.sqlite.sqlite3.connect", small)
    with pytest.raises(StoreFull, match="full"):
        store.put("voices", "bert", bytes(200_000), replaces=0, keeps=9)
    assert store.changes("voices") == before
    assert store.delete("voices", "anna")
    store.put("voices", "carl", bytes(40_000), replaces=0, keeps=9)


def test_the_reserve_is_taken_with_the_first_write_and_again_after_it_was_lost(tmp_path: Path):
    reserve = tmp_path / "store.sqlite-reserve"
    store = SqliteStore(tmp_path / "store.sqlite")
    for replaces in range(2):
        store.put("voices", "anna", b"one", replaces=replaces, keeps=9)
        assert reserve.stat().st_size == RESERVE_BYTES
        reserve.unlink()


def fill(store: Store) -> None:
    for number in range(1, 1000):
        store.put("voices", f"v{number}", os.urandom(3000), replaces=0, keeps=9)


def test_a_full_redis_can_be_deleted_from(tmp_path: Path):
    server = RedisServer(tmp_path)
    try:
        store = RedisStore(server.url)
        store.put("voices", "v0", bytes(3000), replaces=0, keeps=9)
        store._redis.config_set("maxmemory", store._redis.info("memory")["used_memory"] + 300_000)
        with pytest.raises(StoreFull, match="Delete voices") as full:
            fill(store)
        assert server.url in str(full.value)
        assert server.url not in full.value.message
        remaining = [entry.key for entry in store.changes("voices").entries]
        for key in remaining:
            assert store.delete("voices", key)
        store.put("voices", "new", bytes(3000), replaces=0, keeps=9)
        store.close()
    finally:
        server.kill()


# A file that is no store, or belongs to another user.


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Root may read everything: not until the block ends."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns the path of a store with a voice in it, in a folder that every user may enter."""
    folder = Path(f"/tmp/store-{os.getpid()}")  # pytest's own folders are for one user
    folder.mkdir(mode=0o755)
    SqliteStore(folder / "store.sqlite").put("voices", "anna", bytes(100_000), replaces=0, keeps=9)
    yield folder / "store.sqlite"
    shutil.rmtree(folder)


def flip_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 16 + path.read_bytes()[16:])


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_garbage(path: Path) -> None:
    path.write_bytes(b"not a database, whatever its name is " * 1000)


def forbid(path: Path) -> None:
    path.chmod(0)


WRONG: dict[Callable[[Path], None], str] = {
    flip_header: "not a database; restore it from a backup",
    put_garbage: "not a database; restore it from a backup",
    cut_in_half: "malformed; restore it from a backup",
    make_a_folder: "unable to open database file; it must be a file that this user may read and write",
    forbid: "unable to open database file; it must be a file that this user may read and write",
}


@pytest.mark.parametrize("damage", WRONG)
@pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "before it starts"])
def test_the_error_of_an_unusable_file_says_what_to_do(path: Path, damage: Callable[[Path], None], is_running: bool):
    store = SqliteStore(path)
    if is_running:
        store.changes("voices")
    damage(path)
    with ordinary_user():
        for call in (lambda: store.changes("voices"), lambda: store.get("voices", "anna"), lambda: store.delete("voices", "x")):
            with pytest.raises(StoreUnavailable, match=WRONG[damage]) as error:
                call()
            assert str(error.value).startswith(f"{path}: "), "the error names the file"
            assert str(path) not in error.value.message, "the client is not"


def test_a_store_that_is_repaired_works_without_a_restart(path: Path):
    whole = path.read_bytes()
    put_garbage(path)
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable):
        store.changes("voices")
    path.write_bytes(whole)
    assert store.get("voices", "anna") == (1, bytes(100_000))


def test_a_removed_file_is_not_created_again_by_a_store_that_had_it(path: Path):
    store = SqliteStore(path)
    store.changes("voices")
    path.unlink()
    with pytest.raises(StoreUnavailable, match="one that was removed"):
        store.put("voices", "bert", b"", replaces=0, keeps=9)
    assert not path.exists()


def test_an_empty_file_is_an_empty_store(path: Path):
    path.write_bytes(b"")
    assert SqliteStore(path).changes("voices").entries == ()


def test_a_locked_store_says_so_and_works_again_afterwards(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    store = SqliteStore(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="locked; another process holds it"):
            store.changes("voices")
        monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 600.0)  # nobody waits for it any more
        with ThreadPoolExecutor(12) as pool:
            for pending in [pool.submit(store.changes, "voices") for _ in range(36)]:
                with pytest.raises(StoreUnavailable, match="locked; another process holds it"):
                    pending.result()
        other.execute("ROLLBACK")
    assert store.get("voices", "anna") is not None
    assert not store._breaker.is_silent


def test_a_slow_call_of_the_own_process_is_no_file_that_another_holds(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(sqlite, "_forget_deleted", lambda *_: time.sleep(0.3))
    store = SqliteStore(path)
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(store.put, "voices", f"slow{number}", b"", replaces=0, keeps=9) for number in range(4)]
        assert [write.result() for write in writes] == [1] * 4


def test_a_store_that_may_only_be_read_is_read(path: Path):
    path.chmod(0o444)
    with ordinary_user():
        store = SqliteStore(path)
        assert store.get("voices", "anna") is not None
        with pytest.raises(StoreUnavailable, match="readonly database; it, and the folder it is in, must be writable"):
            store.put("voices", "bert", b"", replaces=0, keeps=9)


def test_a_file_with_a_write_ahead_log_is_taken_over(path: Path):
    """Files of earlier releases, also as a killed process left them."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA journal_mode=WAL")
    holder.execute("UPDATE versions SET value = ?", (b"newer",))
    files = {name: path.with_name(name).read_bytes() for name in ("store.sqlite", "store.sqlite-wal")}
    holder.close()
    for name, content in files.items():
        path.with_name(name).write_bytes(content)
    store = SqliteStore(path)
    assert store.get("voices", "anna") == (1, b"newer")
    assert not path.with_name("store.sqlite-wal").exists()


# Few descriptors.

FEW_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from pipeline.errors import StoreUnavailable
from pipeline.store.open import open_store

stores = [open_store(url) for url in sys.argv[1:]]
for store in stores:
    store.put("voices", "anna", b"one", replaces=0, keeps=9)
    store.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for store in stores:
    for call in (lambda: store.get("voices", "anna"), lambda: store.put("voices", "bert", b"", replaces=0, keeps=9)):
        try:
            call()
            raise SystemExit(f"{store.place} needs no file descriptor?")
        except StoreUnavailable as error:
            assert store.place in str(error), error
for number in held:
    os.close(number)
for store in stores:
    assert store.get("voices", "anna") == (1, b"one")
print("held")
"""


def test_without_a_free_descriptor_a_sentence_comes_and_later_everything_goes_on(tmp_path: Path):
    server = RedisServer(tmp_path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path / "store.sqlite"), server.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        server.kill()
    assert done.stdout == "held\n", done.stderr


# A store that hangs: one caller waits, and neither the others nor encoders do.


def refuses(breaker: Breaker) -> bool:
    try:
        with breaker.question():
            return False
    except Open:
        return True


def test_a_question_that_is_slow_lets_no_other_follow():
    clock = HeldClock()
    breaker = Breaker(clock)
    with breaker.question():
        assert not refuses(breaker)
        clock.advance(SLOW_S + 0.1)
        assert refuses(breaker)
    assert not refuses(breaker)


def test_after_a_silence_one_asks_at_a_time_until_there_is_an_answer():
    breaker = Breaker(HeldClock())
    breaker.failed()
    with breaker.question():
        assert refuses(breaker)
    with breaker.question():
        breaker.answered()
        assert not refuses(breaker)


def test_more_than_a_few_questions_wait_for_their_turn():
    breaker = Breaker(HeldClock(), slow_s=0.05)
    with ExitStack() as questions:
        for _ in range(MOST_IN_FLIGHT):
            questions.enter_context(breaker.question())
        assert refuses(breaker), "not for longer than a slow question"
    breaker = Breaker(HeldClock(), slow_s=60.0)
    with ExitStack() as questions:
        for _ in range(MOST_IN_FLIGHT):
            questions.enter_context(breaker.question())
        refused: list[bool] = []
        waiting = threading.Thread(target=lambda: refused.append(refuses(breaker)))
        waiting.start()
    waiting.join(30)
    assert refused == [False]


class Hanging:
    """A store whose changes() waits for `go_on`."""

    place = "here"

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.calls = threading.Semaphore(0)

    def changes(self, namespace: str, since: str) -> object:
        self.calls.release()
        self.go_on.wait(60)
        raise StoreUnavailable("the store does not answer; try again")


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    store = Hanging()
    yield store
    store.go_on.set()


def test_a_refresh_beside_one_of_another_thread_is_refused(hanging: Hanging):
    mirror = Mirror(hanging, "voices", lambda key, version, value: value)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(mirror.refresh)
        assert hanging.calls.acquire(timeout=30)
        with pytest.raises(StoreUnavailable, match="still being read"):
            mirror.refresh()
        hanging.go_on.set()
        assert isinstance(reading.exception(30), StoreUnavailable)


def test_encoders_do_not_wait_for_stores(hanging: Hanging):
    async def play() -> bytes:
        blocked = [
            asyncio.ensure_future(run(hanging.go_on.wait, 60)) for run in (ask_store, asyncio.to_thread) for _ in range(40)
        ]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(30):
                with closing(Encoding(audio_format("mp3"), streamed=True)) as encoding:
                    return await encoding.feed(np.zeros(2400, np.float32)) + await encoding.finish()
        finally:
            hanging.go_on.set()
            await asyncio.gather(*blocked)

    assert asyncio.run(play())
