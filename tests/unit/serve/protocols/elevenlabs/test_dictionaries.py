"""ElevenLabs' pronunciation dictionaries: made of rules or of a file, listed, and spoken with."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
import requests

from pipeline.errors import UnknownLexicon
from pipeline.store.store import Store
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, ring_of
from tests.support.live_server import CANARY, Live, serving

PATH = "/v1/pronunciation-dictionaries"
THAILAND = {
    "string_to_replace": "Thailand",
    "type": "alias",
    "alias": "tie-land",
    "case_sensitive": True,
    "word_boundaries": True,
}
PLS = """<?xml version="1.0" encoding="UTF-8"?>
<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en-US">
  <lexeme><grapheme>tomato</grapheme><phoneme>/tə'meɪtoʊ/</phoneme></lexeme>
  <lexeme><grapheme>Claughton</grapheme><grapheme>Claghton</grapheme><alias>Cloffton</alias></lexeme>
</lexicon>"""


def made(live: Live, *rules: dict[str, Any], **fields: Any) -> requests.Response:
    return requests.post(f"{live.url}{PATH}/add-from-rules", json={"name": "My Words!", "rules": rules} | fields, timeout=60)


def filed(live: Live, document: str, **fields: str) -> requests.Response:
    files = {"file": ("a.pls", document, "text/xml")}
    return requests.post(f"{live.url}{PATH}/add-from-file", data={"name": "Filed"} | fields, files=files, timeout=60)


def get(live: Live, path: str = "") -> Any:
    return requests.get(f"{live.url}{PATH}{path}", timeout=60).json()


def test_a_dictionary_of_rules_is_a_lexicon_that_speaks(store: Store):
    lexicons = LexiconLibrary(store)
    with serving(make_services(Speaker(), lexicons=lexicons)) as live:
        reply = made(live, THAILAND, {**THAILAND, "string_to_replace": "UN", "alias": "you en", "case_sensitive": False})
        one = reply.json()
        assert "X-Ignored-Fields" not in reply.headers
        assert one["id"].startswith("My-Words-")
        assert (one["name"], one["version_rules_num"]) == ("My Words!", 2)
        assert {entry.word: entry.value for entry in lexicons.get(one["id"])} == {"Thailand": "tie-land", "un": "you en"}
        assert get(live, f"/{one['id']}")["rules"][0] == THAILAND
        assert [listed["id"] for listed in get(live)["pronunciation_dictionaries"]] == [one["id"]]
        locators = [{"pronunciation_dictionary_id": one["id"], "version_id": one["version_id"]}]
        body = {"text": "Thailand.", "pronunciation_dictionary_locators": locators}
        assert requests.post(f"{live.url}/v1/text-to-speech/alloy", json=body, timeout=60).status_code == 200
        assert live.services.speech.stream.__self__.requests[-1].lexicon == lexicons.get(one["id"])


def test_a_dictionary_of_a_file_has_a_rule_for_each_way_to_write_a_word(store: Store):
    with serving(make_services(Speaker(), lexicons=LexiconLibrary(store))) as live:
        reply = filed(live, PLS, description="x")
        assert reply.headers["X-Ignored-Fields"] == "description, rules.phoneme"
        rules = get(live, f"/{reply.json()['id']}")["rules"]
        assert {rule["string_to_replace"]: rule["alias"] for rule in rules} == dict.fromkeys(
            ("Claughton", "Claghton"), "Cloffton"
        )


def test_rules_are_set_added_and_removed(store: Store):
    with serving(make_services(Speaker(), lexicons=LexiconLibrary(store))) as live:
        name = made(live, THAILAND).json()["id"]

        def changed(change: str, **fields: Any) -> tuple[int, set[str]]:
            reply = requests.post(f"{live.url}{PATH}/{name}/{change}-rules", json=fields, timeout=60)
            return reply.status_code, {rule["string_to_replace"] for rule in get(live, f"/{name}")["rules"]}

        laos = {**THAILAND, "string_to_replace": "Laos"}
        assert changed("add", rules=[laos]) == (200, {"Thailand", "Laos"})
        assert changed("remove", rule_strings=["thailand", "Peru"]) == (200, {"Laos"})
        assert changed("remove", rule_strings=["Laos"]) == (400, {"Laos"})
        assert changed("set", rules=[THAILAND]) == (200, {"Thailand"})
        assert requests.post(f"{live.url}{PATH}/nothing/set-rules", json={"rules": [laos]}, timeout=60).status_code == 404


def test_rules_that_are_added_at_once_are_all_there(store: Store):
    words = [f"Word{letter}" for letter in "ABCDEFGH"]
    with serving(make_services(Speaker(), lexicons=LexiconLibrary(store))) as live, ThreadPoolExecutor(len(words)) as pool:
        name = made(live, THAILAND).json()["id"]

        def add(word: str) -> int:
            rules = [{**THAILAND, "string_to_replace": word}]
            return requests.post(f"{live.url}{PATH}/{name}/add-rules", json={"rules": rules}, timeout=60).status_code

        assert list(pool.map(add, words)) == [200] * len(words)
        assert {rule["string_to_replace"] for rule in get(live, f"/{name}")["rules"]} == {"Thailand", *words}


def test_a_dictionary_that_is_deleted_meanwhile_leaves_the_list_of_the_others(store: Store, monkeypatch: pytest.MonkeyPatch):
    lexicons = LexiconLibrary(store)
    with serving(make_services(Speaker(), lexicons=lexicons)) as live:
        made(live, THAILAND)
        monkeypatch.setattr(lexicons, "get", Mock(side_effect=UnknownLexicon("no such lexicon")))
        assert len(get(live)["pronunciation_dictionaries"]) == 1


def test_what_is_no_dictionary_is_refused(store: Store):
    bomb = '<!DOCTYPE a [<!ENTITY a "b">]><lexicon><lexeme><grapheme>&a;</grapheme></lexeme></lexicon>'
    with serving(make_services(Speaker(), lexicons=LexiconLibrary(store))) as live:
        for reply, status, name in (
            (made(live), 400, "invalid_lexicon"),
            (
                made(live, {"string_to_replace": "a", "type": "phoneme", "phoneme": "b", "alphabet": "ipa"}),
                400,
                "invalid_lexicon",
            ),
            (made(live, THAILAND, name=""), 400, "out_of_range"),
            (made(live, {**THAILAND, "string_to_replace": CANARY * 100}), 400, "out_of_range"),
            (filed(live, CANARY), 400, "invalid_lexicon"),
            (filed(live, bomb), 400, "invalid_lexicon"),
            (filed(live, "<lexicon/>"), 400, "invalid_lexicon"),
            (requests.get(f"{live.url}{PATH}/{CANARY}", timeout=60), 404, "lexicon_not_found"),
            (requests.get(f"{live.url}{PATH}/a%20b", timeout=60), 404, "lexicon_not_found"),
            (requests.get(f"{live.url}{PATH}/a/b/download", timeout=60), 404, "not_found"),
        ):
            assert CANARY not in reply.text
            assert (reply.status_code, reply.json()["detail"]["status"]) == (status, name), reply.text


def test_dictionaries_belong_to_keys(store: Store):
    keys = [add(store, scopes=scopes)[0] for scopes in ((Scope.TEXT,), (Scope.TEXT,), (Scope.SPEECH,))]
    services = make_services(Speaker(), lexicons=LexiconLibrary(store))
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))
    with serving(services) as live:
        made_by, listed_by, first = [], [], ""
        for key in keys:
            headers, body = {"xi-api-key": key}, {"name": "a", "rules": [THAILAND]}
            made_by.append(
                requests.post(f"{live.url}{PATH}/add-from-rules", json=body, headers=headers, timeout=60).status_code
            )
            listed = requests.get(f"{live.url}{PATH}", headers=headers, timeout=60).json()
            listed_by.append(len(listed.get("pronunciation_dictionaries", ())))
            first = first or listed["pronunciation_dictionaries"][0]["id"]
        makers = [
            requests.get(f"{live.url}{PATH}/{first}", headers={"xi-api-key": key}, timeout=60).json()["created_by"]
            for key in keys[:2]
        ]
    assert makers[0]
    assert not makers[1], "whose it is, is told to nobody else"
    assert (made_by, listed_by) == ([200, 200, 403], [1, 1, 0])
