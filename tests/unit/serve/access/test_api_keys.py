"""API keys: records come and go, the command that manages them, and what holds where their store is lost, damaged or away."""

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.errors import StoreUnavailable
from pipeline.store.open import open_store
from pipeline.store.redis_store import RedisStore
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store
from pipeline.types import Lane
from serve.access.api_keys import KEY, LOST, NAMESPACE, KeyRing, Scope
from serve.access.authentication import Authenticator
from serve.access.keys_marker import KeysMarker, RevokedKeys, marker_for
from serve.commands.operate import keys as keys_script
from tests.support.guarded import LOOPBACK, add, guarded, ring_of, speak, status
from tests.support.services import RedisServer, saved_state


def test_an_unreadable_record_opens_nothing(store: Store):
    store.put(NAMESPACE, "abcdefghij", b"not a record", replaces=0, keeps=9)
    assert status(Authenticator(ring_of(store)), LOOPBACK) == "missing_api_key"


def test_keys_come_and_go_without_a_restart(store: Store):
    ring = ring_of(store)
    with guarded(Authenticator(ring)) as live:
        assert speak(live).status_code == 200
        key, key_id = add(store)
        ring.refresh()
        assert speak(live).status_code == 401
        assert speak(live, **{"X-API-Key": key}).status_code == 200
        assert store.delete(NAMESPACE, key_id)
        second, _ = add(store)
        ring.refresh()
        assert speak(live, **{"X-API-Key": key}).status_code == 401
        assert speak(live, **{"X-API-Key": second}).status_code == 200


def test_a_store_that_goes_away_keeps_the_known_keys(store: Store):
    key, _ = add(store)
    ring = ring_of(store)

    def gone(namespace: str, since: str = "") -> None:
        raise StoreUnavailable("gone")

    store.changes = gone  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailable):
        ring.refresh()
    assert status(Authenticator(ring), "8.8.8.8", x_api_key=key) == "in"


def test_the_script_makes_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = str(tmp_path / "keys.sqlite")
    assert (
        keys_script.main(["add", "anna", "--store", store, "--scopes", "speech", "--lanes", "bulk", "--streams", "none"]) == 0
    )
    key = capsys.readouterr().out.strip()
    assert KEY.fullmatch(key)
    ring = ring_of(open_store(store))
    entry = ring.find(key)
    assert entry is not None
    assert (entry.record.scopes, entry.record.lanes, entry.record.quota.streams) == ((Scope.SPEECH,), (Lane.BULK,), None)
    assert keys_script.main(["list", "--store", store]) == 0
    listed = capsys.readouterr().out
    assert entry.id in listed
    assert key.rpartition(f"{entry.id}-")[2] not in listed + (tmp_path / "keys.sqlite").read_bytes().decode("latin-1")
    assert keys_script.main(["revoke", entry.id, "--store", store]) == 0
    ring.refresh()
    assert ring.find(key) is None
    assert keys_script.main(["revoke", entry.id, "--store", store]) == 1


# A store that is lost, damaged or away: the service stays closed, says why, and opens by one command alone.


IN_A_FILE = pytest.mark.parametrize("kind", ["file"], indirect=True)


class Place:
    """A store of keys, with the markers of a machine, and the operator's command."""

    def __init__(self, url: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.home = url, home
        self._capsys = capsys

    def start(self) -> tuple[KeyRing, Store]:
        """Returns the keys of a replica that begins now."""
        store = open_store(self.url)
        ring = KeyRing(store, marker_for(store, self.home), home=self.home)
        ring.refresh()
        return ring, store

    def command(self, *arguments: str) -> int:
        return keys_script.main([*arguments, "--store", self.url])

    def complaint(self) -> str:
        return self._capsys.readouterr().err

    def add(self) -> str:
        assert self.command("add", "anna") == 0
        return self._capsys.readouterr().out.strip()

    def lose(self) -> None:
        """As `rm store.sqlite*` and FLUSHALL do."""
        if "://" in self.url:
            RedisStore(self.url)._redis.flushall()
            return
        for path in Path(self.url).parent.glob("store.sqlite*"):
            path.unlink()


@pytest.fixture(params=["file", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "home"))
    server = RedisServer(tmp_path) if kind == "redis" else None
    yield Place(server.url if server else str(tmp_path / "store.sqlite"), tmp_path / "home", capsys)
    if server:
        server.kill()


def test_without_a_key_ever_this_machine_is_served(place: Place):
    ring, store = place.start()
    assert status(Authenticator(ring), LOOPBACK) == "in"
    assert not marker_for(store, place.home).is_set
    store.put("voices", "anna", b"one", replaces=0, keeps=9)
    place.lose()
    assert status(Authenticator(place.start()[0]), LOOPBACK) == "in", "voices are lost, keys there were none"


def test_a_lost_store_opens_nothing_until_the_operator_says_so(place: Place, caplog: pytest.LogCaptureFixture):
    key = place.add()
    running, store = place.start()
    assert stat.S_IMODE(marker_for(store, place.home).path.stat().st_mode) == 0o600
    place.lose()
    with caplog.at_level(logging.ERROR):
        ring, store = place.start()
    assert f"{store.place}: {LOST}" in caplog.text
    for reader in (ring, running):  # who begins now, and who has seen the keys
        reader.refresh()
        with guarded(Authenticator(reader)) as live:
            for headers in ({}, {"X-API-Key": key}):
                reply = speak(live, **headers)
                assert (reply.status_code, reply.json()["error"]["message"]) == (503, LOST)
                assert int(reply.headers["Retry-After"]) >= 1
            assert requests.get(f"{live.url}/live", timeout=60).status_code == 200
    assert status(Authenticator(ring, is_open=True), "8.8.8.8") == "in", "another gate stands in front"
    assert "keys forget" in LOST
    assert place.command("forget") == 0
    ring.refresh()
    assert status(Authenticator(ring), LOOPBACK) == "in"


@IN_A_FILE
def test_a_store_that_is_restored_serves_its_keys_again(place: Place, tmp_path: Path):
    key = place.add()
    shutil.copy(place.url, tmp_path / "backup")
    place.lose()
    ring, _ = place.start()
    assert status(Authenticator(ring), LOOPBACK, x_api_key=key) == "store_unavailable"
    shutil.copy(tmp_path / "backup", place.url)
    ring.refresh()
    assert status(Authenticator(ring), LOOPBACK, x_api_key=key) == "in"
    assert status(Authenticator(ring), LOOPBACK) == "missing_api_key"


def test_a_new_key_opens_for_itself(place: Place):
    place.add()
    place.lose()
    key = place.add()
    ring, _ = place.start()
    assert status(Authenticator(ring), LOOPBACK, x_api_key=key) == "in"
    assert status(Authenticator(ring), LOOPBACK) == "missing_api_key"


def test_revoking_the_last_key_closes_and_explains_how_to_open(place: Place):
    first, second = (key.split("-")[1] for key in (place.add(), place.add()))
    assert place.command("revoke", first) == 0
    assert "forget" not in place.complaint()
    assert place.command("forget") == 1
    assert "holds 1 keys: nothing is forgotten" in place.complaint()
    assert place.command("revoke", second) == 0
    assert "chattts-serve keys forget opens the service" in place.complaint()
    ring, _ = place.start()
    assert status(Authenticator(ring), LOOPBACK) == "store_unavailable"
    assert place.command("forget") == 0
    ring.refresh()
    assert status(Authenticator(ring), LOOPBACK) == "in"


def test_a_replica_remembers_keys_it_has_not_seen_made(place: Place):
    """On another machine, or by a release before this one."""
    place.add()
    marker_for(open_store(place.url), place.home).remove()
    _, store = place.start()
    assert marker_for(store, place.home).is_set
    place.lose()
    assert status(Authenticator(place.start()[0]), LOOPBACK) == "store_unavailable"


@IN_A_FILE
def test_a_marker_that_cannot_be_written_is_logged_once_and_keys_work(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    key = place.add()
    (tmp_path / "file").touch()
    store = open_store(place.url)
    ring = KeyRing(store, KeysMarker(tmp_path / "file" / "below", store.place))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            ring.refresh()
    assert caplog.text.count(f"{tmp_path / 'file' / 'below'} cannot be written") == 1
    assert status(Authenticator(ring), LOOPBACK, x_api_key=key) == "in"


def test_a_marker_that_cannot_be_looked_at_counts_as_set(tmp_path: Path):
    assert KeysMarker(Path(f"/{'x' * 300}/mark"), "store").is_set


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(os.urandom(20_000))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@IN_A_FILE
@pytest.mark.parametrize("damage", [cut, empty, garble, folder])
def test_a_damaged_store_at_the_start_closes_a_service_that_had_keys(
    place: Place, tmp_path: Path, damage: Callable[[Path], None]
):
    path = tmp_path / "store.sqlite"
    key = place.add()
    damage(path)
    store = open_store(place.url)
    ring = KeyRing(store, marker_for(store, place.home))
    with contextlib.suppress(StoreUnavailable):
        ring.refresh()
    for headers in ({}, {"x_api_key": key}):
        assert status(Authenticator(ring), LOOPBACK, **headers) == "store_unavailable"
    assert status(Authenticator(ring, is_open=True), LOOPBACK) == "in"


@IN_A_FILE
def test_the_script_names_the_store_it_cannot_use(place: Place, tmp_path: Path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"nothing of the kind" * 500)
    for arguments in (["list"], ["forget"], ["add", "anna"], ["revoke", "a" * 10]):
        assert keys_script.main([*arguments, "--store", str(path)]) == 1
        message = place.complaint()
        assert message.startswith(f"{path}: the store's file cannot be used: file is not a database; restore it from a backup")
        assert message.count("\n") == 1


def test_a_revoked_key_stays_revoked_when_an_older_state_of_the_store_comes_back(
    place: Place, caplog: pytest.LogCaptureFixture
):
    revoked = place.add()
    ring, store = place.start()
    key_id = revoked.split("-")[1]
    restore = saved_state(place.url)
    later = place.add()
    ring.refresh()
    assert ring.find(later)
    store.delete(NAMESPACE, key_id)
    ring.refresh()
    restore()
    other, _ = place.start()  # every replica has restarted, and one of them sees the older state first
    assert other.find(revoked) is None
    assert other.named(key_id) is None
    assert store.get(NAMESPACE, key_id) is None, "the store has been told again"
    ring.refresh()
    assert (ring.find(revoked), ring.find(later)) == (None, None)
    assert store.set_back[NAMESPACE]
    assert f"revoked key {key_id}: refused" in caplog.text
    restored = place.add()
    ring.refresh()
    assert ring.find(restored), "what is lost with a store is not revoked, and keys come and go as before"


@IN_A_FILE
def test_a_revocation_whose_answer_is_lost_holds_too(place: Place, monkeypatch: pytest.MonkeyPatch):
    key = place.add()
    restore, delete = saved_state(place.url), SqliteStore.delete

    def lost(*args: Any) -> bool:
        delete(*args)
        raise StoreUnavailable("its answer is lost", outcome_unknown=True)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "delete", lost)
        assert place.command("revoke", key.split("-")[1]) == 1
    restore()
    assert place.start()[0].find(key) is None


def test_a_key_whose_record_is_damaged_is_not_revoked(place: Place):
    key = place.add()
    ring, store = place.start()
    key_id = key.split("-")[1]
    version, record = store.get(NAMESPACE, key_id) or (0, b"")
    store.put(NAMESPACE, key_id, b"damaged", replaces=version, keeps=1)
    ring.refresh()
    assert ring.find(key) is None
    store.put(NAMESPACE, key_id, record, replaces=version + 1, keeps=1)
    ring.refresh()
    assert ring.find(key)


def test_where_nothing_can_be_written_a_replica_still_remembers(place: Place, tmp_path: Path):
    key = place.add()
    ring, store = place.start()
    ring._revoked = RevokedKeys(tmp_path / "in-the-way" / "below")
    (tmp_path / "in-the-way").touch()
    restore = saved_state(place.url)
    store.delete(NAMESPACE, key.split("-")[1])
    ring.refresh()
    restore()
    ring.refresh()
    assert ring.find(key) is None
