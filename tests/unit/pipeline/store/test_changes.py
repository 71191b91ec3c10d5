"""What readers of a store see: page by page, after it was set back, when a part of it is gone, and how much it grows."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.cache.invalidation import PurgeGenerations
from pipeline.errors import StoreFull, StoreUnavailable
from pipeline.store import redis_store, sqlite
from pipeline.store.mirror import Mirror
from pipeline.store.open import open_store
from pipeline.store.redis_store import RedisStore
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import REVISIONS_KEPT, START, Store
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from pipeline.types import LexiconEntry, PronunciationKind
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from tests.support.effort import examples
from tests.support.services import RedisServer, saved_state
from tests.unit.pipeline.voices.test_library import CATALOGUE, WIDTH, record

actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.binary(max_size=12), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["look", "save", "restore"])),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(params=["file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sqlite, "REVISIONS_KEPT", 16)  # each write of the file costs milliseconds
    redis.Redis.from_url(server.url).flushall()
    return str(tmp_path / "store.sqlite") if request.param == "file" else server.url


def mirror_of(store: Store) -> Mirror[bytes]:
    return Mirror(store, "voices", lambda key, version, value: value)


def contents(mirror: Mirror[bytes]) -> dict[str, dict[int, bytes]]:
    return {key: dict(versions) for key, versions in mirror._keys.items()}


def write(store: Store, key: str, value: bytes = b"x", keeps: int = 1) -> None:
    newest = store.get("voices", key)
    store.put("voices", key, value, replaces=newest[0] if newest else 0, keeps=keeps)


@given(actions=actions, page_bytes=st.integers(1, 40), page_keys=st.integers(1, 3))
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_mirror_shows_what_the_store_has_whatever_happened_to_it(
    url: str, actions: list[tuple[Any, ...]], page_bytes: int, page_keys: int
):
    """Pages of a few bytes, versions that go, older states that come back with fewer, as many or more changes than before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_store, "PAGE_BYTES", page_bytes)
        patch.setattr(redis_store, "PAGE_KEYS", page_keys)
        patch.setattr(sqlite, "REVISIONS_KEPT", 4)  # so that deleted keys are forgotten, too
        store = open_store(url)
        for key in "abc":
            store.delete("voices", key)
        mirror, restore, is_older = mirror_of(store), saved_state(url), False
        for action, *of in actions:
            if action == "put":
                write(store, *of)
            elif action == "delete":
                store.delete("voices", of[0])
            elif action == "save":
                restore = saved_state(url)
            elif action == "restore":
                restore()
            else:
                mirror.refresh()
            is_older |= action == "restore"
        mirror.refresh()
        fresh = mirror_of(store)
        fresh.refresh()
        assert contents(mirror) == contents(fresh)
        assert is_older or not store.set_back, "a store that only went on is not said to be set back"
        store.close()


@pytest.mark.parametrize(
    "writes", [0, 1, 2, REVISIONS_KEPT + 9], ids=["none", "as many as were lost", "more", "very many more"]
)
def test_a_store_that_was_set_back_is_noticed_and_named(url: str, writes: int):
    store = open_store(url)
    write(store, "old")
    restore = saved_state(url)
    write(store, "made-after-the-backup")
    mirror = mirror_of(store)
    mirror.refresh()
    restore()
    for number in range(min(writes, 30 if "://" not in url else writes)):
        write(store, f"new{number % 3}")
    mirror.refresh()
    assert sorted(mirror.newest()) == sorted(entry.key for entry in store.changes("voices").entries)
    assert list(store.set_back) == (["voices"] if writes < 3 else []), "whoever is far behind reads everything"


def test_a_reader_far_behind_reads_everything_and_calls_nothing_set_back(url: str):
    store = open_store(url)
    write(store, "a")
    mirror = mirror_of(store)
    mirror.refresh()
    for _ in range(REVISIONS_KEPT + 3 if "://" in url else 20):
        write(store, "b")
    mirror.refresh()
    assert sorted(mirror.newest()) == ["a", "b"]
    assert not store.set_back


def heads_of(url: str) -> int:
    if "://" in url:
        return redis.Redis.from_url(url).hlen("{chattts:voices}:heads")
    with sqlite._connection(f"file:{url}", 1.0) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM heads").fetchone()[0])


def test_deleted_keys_are_forgotten_and_no_version_comes_twice(url: str):
    store, revisions = open_store(url), REVISIONS_KEPT if "://" in url else 16
    write(store, "stays")
    mirror, far_behind = mirror_of(store), mirror_of(store)
    versions = set()
    for number in range(2 * revisions):
        key = f"k{number % (revisions + 9)}"
        versions.add((key, store.put("voices", key, b"x", replaces=0, keeps=1)))
        if number == 3:
            far_behind.refresh()
        if number % 10 == 0:
            mirror.refresh()
        store.delete("voices", key)
    assert heads_of(url) <= revisions // 2 + 2, "one change of two is a deletion; those of the latest changes are known"
    assert len(versions) == 2 * revisions, "k1@1 never means two things"
    write(store, "last")
    for reader in (mirror, far_behind):
        reader.refresh()
        assert sorted(reader.newest()) == ["last", "stays"]
    assert not store.set_back


def test_a_file_that_may_not_grow_forgets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "REVISIONS_KEPT", 4)
    store = sqlite.SqliteStore(tmp_path / "store.sqlite")
    write(store, "a")
    monkeypatch.setattr(store._reserve, "is_kept", lambda: False)
    for _ in range(9):
        write(store, "b")
        store.delete("voices", "b")
    assert heads_of(str(tmp_path / "store.sqlite")) == 2
    assert store.get("voices", "a") == (1, b"x")


def test_a_file_of_an_earlier_release_goes_on(tmp_path: Path):
    store = sqlite.SqliteStore(tmp_path / "store.sqlite")
    write(store, "a")
    with sqlite._connection(f"file:{tmp_path / 'store.sqlite'}", 1.0) as connection:
        connection.execute("DROP TABLE nonces")
        connection.execute("DROP TABLE forgotten")
        connection.execute("DROP INDEX deleted_heads")
    mirror = mirror_of(store)
    mirror.refresh()
    write(store, "b")
    mirror.refresh()
    assert sorted(mirror.newest()) == ["a", "b"]


def test_two_releases_may_write_to_one_redis(server: RedisServer):
    """The earlier one counts nothing and draws no nonce."""
    client = redis.Redis.from_url(server.url)
    client.flushall()
    store = RedisStore(server.url)
    write(store, "a")
    mirror = mirror_of(store)
    mirror.refresh()
    meta, heads, values, log = redis_store._keys("voices")

    def write_as_before(key: str) -> None:
        revision = client.hincrby(meta, "revision", 1)
        client.hset(values, f"{key}@1", b"x")
        client.hset(heads, key, "1 1 1")
        client.zadd(log, {key: revision})

    for key in "bcd":
        write_as_before(key)
        mirror.refresh()
        write(store, f"{key}{key}")
        mirror.refresh()
    assert sorted(mirror.newest()) == ["a", "b", "bb", "c", "cc", "d", "dd"]
    assert not store.set_back
    assert int(client.hget(meta, "bytes") or 0) == 7


def test_between_two_pages_others_may_write(server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    redis.Redis.from_url(server.url).flushall()
    monkeypatch.setattr(redis_store, "PAGE_BYTES", 4)
    store, other = RedisStore(server.url), RedisStore(server.url)
    for number in range(6):
        write(store, f"k{number}", b"four", keeps=3)
    write(store, "k3", b"more", keeps=3)
    read_page, changes = (
        store._page,
        [
            lambda: write(other, "k0", b"late", keeps=3),
            lambda: other.delete("voices", "k1"),
            lambda: write(other, "k3", b"last", keeps=2),
            lambda: write(other, "k9", b"new"),
            lambda: other.delete("voices", "k5"),
        ],
    )

    def page(*args: Any) -> Any:
        answer = read_page(*args)
        if changes:
            changes.pop(0)()
        return answer

    monkeypatch.setattr(store, "_page", page)
    mirror, fresh = mirror_of(store), mirror_of(other)
    mirror.refresh()
    fresh.refresh()
    assert not changes
    assert contents(mirror) == contents(fresh)


def test_no_page_is_larger_than_its_bytes_and_one_value(server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    redis.Redis.from_url(server.url).flushall()
    store = RedisStore(server.url)
    for number in range(40):
        for _ in range(3):
            write(store, f"k{number}", bytes(20_000), keeps=3)
    sizes, read_page = [], store._page

    def page(*args: Any) -> Any:
        answer = read_page(*args)
        sizes.append(sum(len(value) for _, _, *versions in answer[-1] for value in versions[1::2]))
        return answer

    monkeypatch.setattr(store, "_page", page)
    assert len(store.changes("voices", START).entries) == 40
    assert max(sizes) <= redis_store.PAGE_BYTES + 20_000
    assert sum(sizes) == 40 * 3 * 20_000, "nothing is read twice"


@pytest.mark.parametrize("gone", ["meta", "heads", "values", "log"])
def test_what_redis_has_evicted_is_named_and_never_an_empty_list(server: RedisServer, gone: str):
    client = redis.Redis.from_url(server.url)
    client.flushall()
    store = RedisStore(server.url)
    write(store, "a")
    write(store, "b")
    position = store.changes("voices").position
    client.delete(f"{{chattts:voices}}:{gone}")
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.get("voices", "a"),
        lambda: store.changes("voices"),
        lambda: store.changes("voices", position),
        lambda: store.put("voices", "a", b"new", replaces=1, keeps=1),
        lambda: store.put("voices", "c", b"new", replaces=0, keeps=1),
        lambda: store.delete("voices", "a"),
    )
    for call in calls:
        with pytest.raises(StoreUnavailable, match="a part of the voices"):
            call()


def test_a_namespace_has_a_size(url: str, monkeypatch: pytest.MonkeyPatch):
    most = 100_000
    for module in (sqlite, redis_store):
        monkeypatch.setattr(module, "MAX_NAMESPACE_BYTES", most)
    store = open_store(url)
    for number in range(most // 9000):
        write(store, f"k{number}", bytes(9000))
    with pytest.raises(StoreFull, match=r"the voices take .* the most there may be"):
        write(store, "more", bytes(9000))
    size = sum(len(value) for entry in store.changes("voices").entries for _, value in entry.versions)
    assert most - 9000 < size <= most
    write(store, "k0", bytes(9000))
    write(store, "k1", b"less")
    write(store, "another", bytes(8000))
    store.put("lexicons", "mine", bytes(9000), replaces=0, keeps=1)
    assert store.delete("voices", "k2")
    write(store, "new", bytes(9000))
    with pytest.raises(StoreFull):
        write(store, "k1", bytes(12_000))


# Growth: whatever a client may repeat leaves no more behind than doing it once, on disk and in every replica's copy.


REPEATED = ("cache", "lexicons", "voice-scores", "voice-loudness")
WORDS = (LexiconEntry("ACME", PronunciationKind.ALIAS, "a sea of money"),)


def purges(store: Store, folder: Path) -> Callable[[], object]:
    generations = PurgeGenerations(store)
    return lambda: (generations.purge(None), generations.purge("somebody"))


def lexicons(store: Store, folder: Path) -> Callable[[], object]:
    library = LexiconLibrary(store)
    return lambda: library.put("mine", WORDS)


def scores(store: Store, folder: Path) -> Callable[[], object]:
    (folder / "voices.yaml").write_text(CATALOGUE)
    library = VoiceLibrary(VoiceCatalogue.load(folder / "voices.yaml", WIDTH), store)
    voice = library.add("anna", record("Anna"))
    return lambda: (library.keep_score(voice, {"stability": 0.5}), library.keep_loudness("alloy", "demo", -20.0))


@pytest.mark.parametrize("prepared", [purges, lexicons, scores])
def test_what_is_repeated_is_kept_once(tmp_path: Path, prepared: Callable[[Store, Path], Callable[[], object]]):
    store = SqliteStore(tmp_path / "store.sqlite")
    again = prepared(store, tmp_path)
    sizes = []
    for _ in range(5):
        again()
        sizes.append(sum(len(entry.versions) for namespace in REPEATED for entry in store.changes(namespace).entries))
    assert sizes[0] == sizes[-1] > 0
