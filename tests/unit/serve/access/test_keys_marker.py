"""Keys whose store is lost, damaged or away: the service stays closed, says why, and opens by one command alone."""

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
from pipeline.store.redis import RedisStore
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store
from scripts.operate import keys as keys_script
from serve.access.api_keys import LOST, NAMESPACE, KeyRing
from serve.access.authentication import Authenticator
from serve.access.keys_marker import KeysMarker, RevokedKeys, marker_for
from tests.support.guarded import LOOPBACK, guarded, speak, status
from tests.support.services import RedisServer, saved_state


@pytest.fixture(params=["file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "home"))
    if request.param == "file":
        yield str(tmp_path / "store.sqlite")
        return
    server = RedisServer(tmp_path)
    yield server.url
    server.kill()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def started(url: str, home: Path) -> tuple[KeyRing, Store]:
    """The keys of a replica that begins now."""
    store = open_store(url)
    ring = KeyRing(store, marker_for(store, home), home=home)
    ring.refresh()
    return ring, store


def add(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert keys_script.main(["add", "anna", "--store", url]) == 0
    return capsys.readouterr().out.strip()


def lose(url: str) -> None:
    """As `rm store.sqlite*` and FLUSHALL do."""
    if "://" in url:
        RedisStore(url)._redis.flushall()
        return
    for path in Path(url).parent.glob("store.sqlite*"):
        path.unlink()


def test_without_a_key_ever_this_machine_is_served(url: str, home: Path):
    ring, store = started(url, home)
    assert status(Authenticator(ring), LOOPBACK) == "in"
    assert not marker_for(store, home).is_set
    store.put("voices", "anna", b"one", replaces=0, keeps=9)
    lose(url)
    assert status(Authenticator(started(url, home)[0]), LOOPBACK) == "in", "voices are lost, keys there were none"


def test_a_lost_store_opens_nothing_until_the_operator_says_so(
    url: str, home: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    key = add(url, capsys)
    running, store = started(url, home)
    assert stat.S_IMODE(marker_for(store, home).path.stat().st_mode) == 0o600
    lose(url)
    with caplog.at_level(logging.ERROR):
        ring, store = started(url, home)
    assert f"{store.place}: {LOST}" in caplog.text
    for each in (ring, running):  # who begins now, and who has seen the keys
        each.refresh()
        with guarded(Authenticator(each)) as live:
            for headers in ({}, {"X-API-Key": key}):
                reply = speak(live, **headers)
                assert (reply.status_code, reply.json()["error"]["message"]) == (503, LOST)
                assert int(reply.headers["Retry-After"]) >= 1
            assert requests.get(f"{live.url}/live", timeout=60).status_code == 200
    assert status(Authenticator(ring, is_open=True), "8.8.8.8") == "in", "another gate stands in front"
    assert "keys forget" in LOST
    assert keys_script.main(["forget", "--store", url]) == 0
    ring.refresh()
    assert status(Authenticator(ring), LOOPBACK) == "in"


def test_a_store_that_is_restored_serves_its_keys_again(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]):
    url = str(tmp_path / "store.sqlite")
    key = add(url, capsys)
    shutil.copy(url, tmp_path / "backup")
    lose(url)
    ring, _ = started(url, home)
    assert status(Authenticator(ring), LOOPBACK, x_api_key=key) == "store_unavailable"
    shutil.copy(tmp_path / "backup", url)
    ring.refresh()
    assert status(Authenticator(ring), LOOPBACK, x_api_key=key) == "in"
    assert status(Authenticator(ring), LOOPBACK) == "missing_api_key"


def test_a_new_key_opens_for_itself(url: str, home: Path, capsys: pytest.CaptureFixture[str]):
    add(url, capsys)
    lose(url)
    key = add(url, capsys)
    ring, _ = started(url, home)
    assert status(Authenticator(ring), LOOPBACK, x_api_key=key) == "in"
    assert status(Authenticator(ring), LOOPBACK) == "missing_api_key"


def test_revoking_the_last_key_closes_and_explains_how_to_open(url: str, home: Path, capsys: pytest.CaptureFixture[str]):
    first, second = (key.split("-")[1] for key in (add(url, capsys), add(url, capsys)))
    assert keys_script.main(["revoke", first, "--store", url]) == 0
    assert "forget" not in capsys.readouterr().err
    assert keys_script.main(["forget", "--store", url]) == 1
    assert "holds 1 keys: nothing is forgotten" in capsys.readouterr().err
    assert keys_script.main(["revoke", second, "--store", url]) == 0
    assert "chattts-serve keys forget opens the service" in capsys.readouterr().err
    ring, _ = started(url, home)
    assert status(Authenticator(ring), LOOPBACK) == "store_unavailable"
    assert keys_script.main(["forget", "--store", url]) == 0
    ring.refresh()
    assert status(Authenticator(ring), LOOPBACK) == "in"


def test_a_replica_remembers_keys_it_has_not_seen_made(url: str, home: Path, capsys: pytest.CaptureFixture[str]):
    """On another machine, or by a release before this one."""
    add(url, capsys)
    marker_for(open_store(url), home).remove()
    _, store = started(url, home)
    assert marker_for(store, home).is_set
    lose(url)
    assert status(Authenticator(started(url, home)[0]), LOOPBACK) == "store_unavailable"


def test_a_marker_that_cannot_be_written_is_logged_once_and_keys_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    key = add(str(tmp_path / "store.sqlite"), capsys)
    (tmp_path / "file").touch()
    store = open_store(str(tmp_path / "store.sqlite"))
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


@pytest.mark.parametrize("damage", [cut, empty, garble, folder])
def test_a_damaged_store_at_the_start_closes_a_service_that_had_keys(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
):
    path = tmp_path / "store.sqlite"
    key = add(str(path), capsys)
    damage(path)
    store = open_store(str(path))
    ring = KeyRing(store, marker_for(store, home))
    with contextlib.suppress(StoreUnavailable):
        ring.refresh()
    for headers in ({}, {"x_api_key": key}):
        assert status(Authenticator(ring), LOOPBACK, **headers) == "store_unavailable"
    assert status(Authenticator(ring, is_open=True), LOOPBACK) == "in"


def test_the_script_names_the_store_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"nothing of the kind" * 500)
    for arguments in (["list"], ["forget"], ["add", "anna"], ["revoke", "a" * 10]):
        assert keys_script.main([*arguments, "--store", str(path)]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"{path}: the store's file cannot be used: file is not a database; restore it from a backup")
        assert said.count("\n") == 1


def test_a_revoked_key_stays_revoked_when_an_older_state_of_the_store_comes_back(
    url: str, home: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    revoked = add(url, capsys)
    ring, store = started(url, home)
    key_id = revoked.split("-")[1]
    restore = saved_state(url)
    later = add(url, capsys)
    ring.refresh()
    assert ring.find(later)
    store.delete(NAMESPACE, key_id)
    ring.refresh()
    restore()
    other, _ = started(url, home)  # every replica has restarted, and one of them sees the older state first
    assert other.find(revoked) is None
    assert other.named(key_id) is None
    assert store.get(NAMESPACE, key_id) is None, "the store has been told again"
    ring.refresh()
    assert (ring.find(revoked), ring.find(later)) == (None, None)
    assert store.set_back[NAMESPACE]
    assert f"revoked key {key_id}: refused" in caplog.text
    restored = add(url, capsys)
    ring.refresh()
    assert ring.find(restored), "what is lost with a store is not revoked, and keys come and go as before"


def test_a_revocation_whose_answer_is_lost_holds_too(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    url = str(tmp_path / "store.sqlite")
    key = add(url, capsys)
    restore, delete = saved_state(url), SqliteStore.delete

    def lost(*args: Any) -> bool:
        delete(*args)
        raise StoreUnavailable("its answer is lost", outcome_unknown=True)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "delete", lost)
        assert keys_script.main(["revoke", key.split("-")[1], "--store", url]) == 1
    restore()
    assert started(url, home)[0].find(key) is None


def test_a_key_whose_record_is_damaged_is_not_revoked(url: str, home: Path, capsys: pytest.CaptureFixture[str]):
    key = add(url, capsys)
    ring, store = started(url, home)
    key_id = key.split("-")[1]
    version, record = store.get(NAMESPACE, key_id) or (0, b"")
    store.put(NAMESPACE, key_id, b"damaged", replaces=version, keeps=1)
    ring.refresh()
    assert ring.find(key) is None
    store.put(NAMESPACE, key_id, record, replaces=version + 1, keeps=1)
    ring.refresh()
    assert ring.find(key)


def test_where_nothing_can_be_written_a_replica_still_remembers(
    url: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    key = add(url, capsys)
    ring, store = started(url, home)
    ring._revoked = RevokedKeys(tmp_path / "in-the-way" / "below")
    (tmp_path / "in-the-way").touch()
    restore = saved_state(url)
    store.delete(NAMESPACE, key.split("-")[1])
    ring.refresh()
    restore()
    ring.refresh()
    assert ring.find(key) is None
