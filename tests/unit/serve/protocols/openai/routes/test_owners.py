"""Owners: who replaces or deletes a lexicon or a voice that all keys use, over every route, and how much one key may keep."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
import requests

from pipeline.errors import NotTheOwner, ShareUsedUp
from pipeline.store.open import open_store
from pipeline.store.ownership import Share, Writer
from pipeline.store.store import Store
from pipeline.text.lexicon import lexicon_library as lexicons
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from pipeline.types import LexiconEntry, PronunciationKind
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from tests.support.guarded import add, ring_of
from tests.support.live_server import serving
from tests.support.voice_routes import services_with

ENTRIES = {"entries": {"ACME": "a sea of money"}}
WHO = ("anna", "bert", "admin", "nobody")
CHANGES = {
    "lexicon": [("PUT", "/v1/lexicons/{id}", {"json": ENTRIES}), ("DELETE", "/v1/lexicons/{id}", {})],
    "voice": [
        ("PATCH", "/v1/audio/voices/{id}", {"json": {"description": "other"}}),
        ("POST", "/v1/voices/{id}/edit", {"files": {"name": (None, "other")}}),
        ("DELETE", "/v1/audio/voices/{id}", {}),
        ("DELETE", "/v1/voices/{id}", {}),
    ],
}
CASES = [(kind, change) for kind, changes in CHANGES.items() for change in changes]


@dataclass
class Shop:
    url: str
    store: Store
    keys: dict[str, str]
    refresh: Callable[[], object]

    def ask(self, who: str, method: str, path: str, **options: object) -> requests.Response:
        headers = {"X-API-Key": self.keys[who]} if who in self.keys else {}
        return requests.request(method, self.url + path, headers=headers, timeout=60, **options)  # type: ignore[arg-type]

    def make(self, who: str, kind: str, name: str) -> None:
        if kind == "lexicon":
            reply = self.ask(who, "PUT", f"/v1/lexicons/{name}", json=ENTRIES)
        else:
            reply = self.ask(who, "POST", "/v1/audio/voices", json={"name": name, "seed": 7})
        reply.raise_for_status()

    def forget_owner(self, kind: str, name: str) -> None:
        """Writes the record as releases wrote it that kept no owner."""
        namespace = {"lexicon": "lexicons", "voice": "voices"}[kind]
        found = self.store.get(namespace, name)
        assert found is not None
        record = json.loads(found[1])
        assert record.pop("owner")
        record.pop("preview_bytes", None)
        value = json.dumps(record["entries"] if kind == "lexicon" else record).encode()
        self.store.put(namespace, name, value, replaces=found[0], keeps=1)
        self.refresh()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    url = str(tmp_path_factory.mktemp("shop") / "store.sqlite")
    store = open_store(url)
    keys = {name: add(store)[0] for name in ("anna", "bert")}
    keys["admin"] = add(store, scopes=tuple(Scope))[0]
    gate = Authenticator(ring_of(store), is_open=True, anonymous_scopes=tuple(Scope))
    services = services_with(url)
    library = LexiconLibrary(store)
    services = replace(services, authenticator=gate, speech=replace(services.speech, lexicons=library))
    with serving(services) as live:
        yield Shop(live.url, store, keys, services.voices.library.refresh)
    store.close()


@pytest.mark.parametrize("owner", ["anna", "nobody", ""])
@pytest.mark.parametrize(("kind", "change"), CASES)
def test_others_change_nothing(shop: Shop, kind: str, change: tuple[str, str, dict[str, object]], owner: str):
    method, path, options = change
    for who in WHO:
        name = f"{kind}-{owner or 'old'}-{who}-{method.lower()}{path.count('audio')}"
        shop.make(owner or "anna", kind, name)
        if not owner:
            shop.forget_owner(kind, name)
        reply = shop.ask(who, method, path.replace("{id}", name), **options)
        assert (reply.status_code < 300) == (who in (owner, "admin")), (who, reply.text)
        if reply.status_code >= 300:
            assert reply.status_code == 403
            assert "another key" in reply.text
        shop.ask("admin", "DELETE", path.replace("{id}", name).removesuffix("/edit"))


def entries(letters: int) -> tuple[LexiconEntry, ...]:
    return (LexiconEntry("ACME", PronunciationKind.ALIAS, "s" * letters),)


def test_an_operator_changes_a_record_and_its_owner_keeps_it(store: Store):
    library, anna, bert = LexiconLibrary(store), Writer("anna", is_operator=False), Writer("bert", is_operator=False)
    library.put("x", entries(5), anna)
    library.put("x", entries(6))
    library.put("x", entries(7), anna)
    for change in (lambda: library.put("x", entries(5), bert), lambda: library.delete("x", bert)):
        with pytest.raises(NotTheOwner):
            change()
    library.delete("x", anna)
    library.put("x", entries(5), bert)


def test_one_key_fills_its_share_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lexicons, "SHARE", Share("lexicons", 3, 2000))
    library, anna, bert = LexiconLibrary(store), Writer("anna", is_operator=False), Writer("bert", is_operator=False)

    def put(number: int, letters: int = 10) -> bool:
        try:
            library.put(f"a{number}", entries(letters), anna)
        except ShareUsedUp:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(8))) == 3, "at once, too"
    kept = next(number for number in range(8) if f"a{number}" in library._mirror.newest())  # type: ignore[union-attr]
    assert put(kept, 1500), "what it replaces does not count"
    assert not put(kept, 3000)
    library.put("b", entries(1500), bert)
    library.put("o", entries(3000))
    library.delete(f"a{kept}", anna)
    assert put(kept)
