"""API keys: records come, go and cannot be read; the command that manages them."""

from pathlib import Path

import pytest

from pipeline.errors import StoreUnavailable
from pipeline.store.open import open_store
from pipeline.store.store import Store
from pipeline.types import Lane
from scripts.operate import keys as keys_script
from serve.access.api_keys import KEY, NAMESPACE, Scope
from serve.access.authentication import Authenticator
from tests.support.guarded import LOOPBACK, add, guarded, ring_of, speak, status


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
    found = ring.find(key)
    assert found is not None
    assert (found.record.scopes, found.record.lanes, found.record.quota.streams) == ((Scope.SPEECH,), (Lane.BULK,), None)
    assert keys_script.main(["list", "--store", store]) == 0
    listed = capsys.readouterr().out
    assert found.id in listed
    assert key.rpartition(f"{found.id}-")[2] not in listed + (tmp_path / "keys.sqlite").read_bytes().decode("latin-1")
    assert keys_script.main(["revoke", found.id, "--store", store]) == 0
    ring.refresh()
    assert ring.find(key) is None
    assert keys_script.main(["revoke", found.id, "--store", store]) == 1
