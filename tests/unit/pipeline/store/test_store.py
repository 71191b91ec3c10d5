"""Stores: what is promised of every one, held against a file and a real redis-server."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError, Conflict, StoreUnavailable
from pipeline.store.mirror import Mirror
from pipeline.store.open import open_store
from pipeline.store.redis_store import RedisStore
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import MAX_VALUE_BYTES, START, Store
from tests.support.effort import examples
from tests.support.services import RedisServer

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(params=["file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "deep" / "store.sqlite")
    server: RedisServer = request.getfixturevalue("redis_server")
    RedisStore(server.url)._redis.flushall()
    return server.url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


def text(key: str, version: int, value: bytes) -> str:
    return value.decode()


def test_a_version_is_written_once_and_stays(store: Store):
    assert store.put("voices", "anna", b"one", replaces=0, keeps=9) == 1
    assert store.put("voices", "anna", b"two", replaces=1, keeps=9) == 2
    assert store.get("voices", "anna") == (2, b"two")
    (entry,) = store.changes("voices").entries
    assert (entry.key, entry.versions) == ("anna", ((1, b"one"), (2, b"two")))
    assert store.get("voices", "missing") is None
    assert store.get("lexicons", "anna") is None, "namespaces do not see each other"


@pytest.mark.parametrize("replaces", [0, 2, 7])
def test_a_write_over_something_else_than_it_says_is_a_conflict(store: Store, replaces: int):
    store.put("voices", "anna", b"one", replaces=0, keeps=9)
    before = store.changes("voices")
    with pytest.raises(Conflict, match="version 1 is the newest"):
        store.put("voices", "anna", b"two", replaces=replaces, keeps=9)
    assert store.changes("voices") == before


def test_a_key_that_comes_back_goes_on_counting(store: Store):
    store.put("voices", "anna", b"one", replaces=0, keeps=9)
    store.put("voices", "anna", b"two", replaces=1, keeps=9)
    assert store.delete("voices", "anna")
    assert not store.delete("voices", "anna")
    assert store.get("voices", "anna") is None
    assert store.put("voices", "anna", b"another", replaces=0, keeps=9) == 3, "anna@1 never means two voices"
    (entry,) = store.changes("voices").entries
    assert entry.versions == ((3, b"another"),)


def test_older_versions_go_where_only_some_are_kept(store: Store):
    for number in range(5):
        store.put("lexicons", "mine", f"{number}".encode(), replaces=number, keeps=9 if number < 3 else 2)
    (entry,) = store.changes("lexicons").entries
    assert entry.versions == ((4, b"3"), (5, b"4"))
    assert store.delete("lexicons", "mine")
    assert store.put("lexicons", "mine", b"again", replaces=0, keeps=2) == 6
    (entry,) = store.changes("lexicons").entries
    assert entry.versions == ((6, b"again"),)


def test_changes_are_returned_once(store: Store):
    assert store.changes("voices", START).entries == ()
    store.put("voices", "anna", b"one", replaces=0, keeps=9)
    store.put("voices", "bert", b"one", replaces=0, keeps=9)
    first = store.changes("voices", START)
    assert first.is_whole
    assert store.changes("voices", first.position).entries == ()
    store.put("voices", "bert", b"two", replaces=1, keeps=9)
    store.delete("voices", "anna")
    second = store.changes("voices", first.position)
    assert not second.is_whole
    assert [(entry.key, entry.versions) for entry in second.entries] == [("bert", ((1, b"one"), (2, b"two"))), ("anna", ())]


def test_values_are_bytes_of_any_kind(store: Store):
    value = bytes(range(256)) * 100
    store.put("voices", "anna", value, replaces=0, keeps=9)
    store.put("voices", "empty", b"", replaces=0, keeps=9)
    store.put("voices", "large", bytes(MAX_VALUE_BYTES), replaces=0, keeps=9)
    assert store.get("voices", "anna") == (1, value)
    assert store.get("voices", "empty") == (1, b"")
    with pytest.raises(AssertionError):
        store.put("voices", "larger", bytes(MAX_VALUE_BYTES + 1), replaces=0, keeps=9)
    for key in ("../anna", "a b", "", "a" * 81):
        with pytest.raises(AssertionError):
            store.put("voices", key, b"", replaces=0, keeps=9)


actions = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "look"]), st.sampled_from(["a", "b", "c"]), st.binary(max_size=8)), max_size=30
)


@given(actions=actions)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_mirror_always_shows_what_was_written(url: str, actions: list[tuple[str, str, bytes]]):
    store = open_store(url)
    for key in "abc":
        store.delete("mirrored", key)
    mirror = Mirror(store, "mirrored", lambda key, version, value: value)
    model: dict[str, bytes] = {}
    for action, key, value in actions:
        if action == "put":
            newest = store.get("mirrored", key)
            store.put("mirrored", key, value, replaces=newest[0] if newest else 0, keeps=9)
            model[key] = value
        elif action == "delete":
            assert store.delete("mirrored", key) == (key in model)
            model.pop(key, None)
        else:
            mirror.refresh()
            assert mirror.newest() == dict(sorted(model.items()))
    mirror.refresh()
    assert mirror.newest() == dict(sorted(model.items()))
    late = Mirror(store, "mirrored", lambda key, version, value: value)
    late.refresh()
    assert late.newest() == mirror.newest()
    store.close()


@pytest.mark.slow
def test_concurrent_writers_lose_nothing(url: str):
    """Eight threads with a store each count one key up together; every count arrives, none twice."""

    def count(_: int) -> list[int]:
        own = open_store(url)
        written = []
        while len(written) < 10:
            newest = own.get("counts", "n")
            version, value = newest or (0, b"0")
            try:
                written.append(own.put("counts", "n", str(int(value) + 1).encode(), replaces=version, keeps=9))
            except Conflict:
                continue
        own.close()
        return written

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        versions = sorted(version for written in pool.map(count, range(8)) for version in written)
    assert versions == list(range(1, 81))
    assert open_store(url).get("counts", "n") == (80, b"80")


WRITER = """
import sys
from pipeline.errors import Conflict
from pipeline.store.open import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    newest = store.get("killed", f"k{number % 7}")
    store.put("killed", f"k{number % 7}", f"{number}".encode() * 5000, replaces=newest[0] if newest else 0, keeps=9)
    number += 1
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_in_the_middle_leaves_whole_versions(url: str):
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, url]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                if line.strip() == "20":
                    break
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged = [int(line) for line in writer.stdout if line.strip().isdigit()]
            assert writer.wait() == -signal.SIGKILL
        last = acknowledged[-1] if acknowledged else 20
        entries = {entry.key: entry.versions for entry in open_store(url).changes("killed").entries}
        _, value = entries[f"k{(last - 1) % 7}"][-1]
        assert value == f"{last - 1}".encode() * 5000, "what was acknowledged is there, whole"
        for versions in entries.values():
            for _, value in versions:
                digits = value[: len(value) // 5000]
                assert value == digits * 5000
        for key in entries:
            open_store(url).delete("killed", key)


def test_many_may_make_the_file_together(tmp_path: Path):
    path = tmp_path / "store.sqlite"
    barrier = threading.Barrier(8)

    def make(number: int) -> None:
        barrier.wait()
        SqliteStore(path).put("created", f"k{number}", b"", replaces=0, keeps=9)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(8)))
    assert len(SqliteStore(path).changes("created").entries) == 8


@pytest.mark.parametrize("url", ["http://store", "postgres://x/y", "file:///x"])
def test_other_urls_are_a_mistake_of_the_file(url: str):
    with pytest.raises(ConfigError, match="redis://"):
        open_store(url)


class Outage:
    """A redis-server that goes away and comes back."""

    def __init__(self, folder: Path) -> None:
        self.server = RedisServer(folder)
        self.store = RedisStore(self.server.url)
        self.store.put("voices", "anna", b"one", replaces=0, keeps=9)
        self.mirror = Mirror(self.store, "voices", text)
        self.mirror.refresh()

    def expect_nothing_but_memory(self) -> None:
        for call in (
            lambda: self.store.put("voices", "bert", b"x", replaces=0, keeps=9),
            lambda: self.store.delete("voices", "missing"),
            self.mirror.refresh,
        ):
            with pytest.raises(StoreUnavailable):  # and not for ever: the suite's own time limit would say so
                call()
        assert self.mirror.newest() == {"anna": "one"}


@pytest.fixture
def outage(tmp_path: Path) -> Iterator[Outage]:
    outage = Outage(tmp_path)
    yield outage
    outage.server.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("leave", "come_back"), [("kill", "start"), ("freeze", "thaw")])
def test_while_redis_is_away_memory_serves_and_writes_are_refused(outage: Outage, leave: str, come_back: str):
    getattr(outage.server, leave)()
    outage.expect_nothing_but_memory()
    getattr(outage.server, come_back)()
    outage.mirror.refresh()
    assert outage.mirror.get("anna") == "one"
    assert outage.store.get("voices", "anna") == (1, b"one")
    outage.store.put("voices", "carl", b"new", replaces=0, keeps=9)
    outage.mirror.refresh()
    assert outage.mirror.get("carl") == "new"


def test_a_store_that_was_emptied_is_followed(outage: Outage):
    RedisStore(outage.server.url)._redis.flushall()
    outage.mirror.refresh()
    assert outage.mirror.newest() == {}
    outage.store.put("voices", "dora", b"first again", replaces=0, keeps=9)
    assert outage.mirror.refresh()
    assert outage.mirror.newest() == {"dora": "first again"}


def test_a_bad_record_is_skipped_and_counted(store: Store):
    def number(key: str, version: int, value: bytes) -> float:
        return 6 // int(value) if key != "worse" else value[0]  # raises a ValueError, an arithmetic error or an IndexError

    for key, value in (("good", b"6"), ("bad", b"one"), ("zero", b"0"), ("worse", b"")):
        store.put("numbers", key, value, replaces=0, keeps=9)
    mirror = Mirror(store, "numbers", number)
    mirror.refresh()
    assert (mirror.newest(), mirror.broken) == ({"good": 1}, {"bad", "zero", "worse"})
    store.put("numbers", "bad", b"3", replaces=1, keeps=9)
    mirror.refresh()
    assert (mirror.newest(), mirror.get("bad", 1)) == ({"bad": 2, "good": 1}, None)
    for key in ("bad", "zero", "worse"):
        store.delete("numbers", key)
    mirror.refresh()
    assert mirror.broken == frozenset()


def test_reading_a_mirror_never_waits_for_a_refresh(store: Store):
    waiting, go_on = threading.Event(), threading.Event()

    class Slow:
        def changes(self, namespace: str, since: str = START) -> object:
            waiting.set()
            go_on.wait(10)
            return store.changes(namespace, since)

    store.put("voices", "anna", b"one", replaces=0, keeps=9)
    mirror = Mirror(Slow(), "voices", text)  # type: ignore[arg-type]
    refreshing: Callable[[], bool] = mirror.refresh
    thread = threading.Thread(target=refreshing)
    thread.start()
    waiting.wait(10)
    assert mirror.newest() == {}
    go_on.set()
    thread.join()
    assert mirror.newest() == {"anna": "one"}
