"""ElevenLabs' HTTP routes on the wire: what is translated, named, listed and refused."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import requests

from pipeline.errors import UnknownLexicon
from pipeline.store.store import Store
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from serve.access.api_keys import Quota, Scope
from serve.access.authentication import Authenticator
from serve.protocols.elevenlabs.routes import MOST_VOICE_IDS
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import CANARY, Live, serving
from tests.support.recordings import SAID, spoken, written
from tests.support.voice_routes import voice_server

SPEAK = "/v1/text-to-speech/alloy"


def post(live: Live, path: str, **body: Any) -> requests.Response:
    return requests.post(live.url + path, json={"text": "Hello there.", "seed": 7, **body}, timeout=60)


def get(live: Live, path: str, **headers: str) -> Any:
    return requests.get(live.url + path, headers=headers, timeout=60).json()


def test_a_body_has_the_effect_of_the_services_own(live):
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("?output_format=pcm_24000", {}, {}),
        ("?output_format=pcm_16000", {"model_id": "eleven_v3"}, {"sample_rate": 16_000}),
        ("?output_format=ulaw_8000", {"language_code": "en"}, {"response_format": "ulaw", "language": "en"}),
        ("?output_format=pcm_24000", {"voice_settings": {"speed": 1.2, "style": None}}, {"speed": 1.2}),
        ("?output_format=mp3_44100", {"apply_text_normalization": "off"}, {"response_format": "mp3", "sample_rate": 44_100}),
        ("", {}, {"response_format": "mp3", "sample_rate": 44_100, "bitrate": 128}),
    ]
    for query, body, own in cases:
        for path, stream in ((SPEAK, False), (f"{SPEAK}/stream", True)):
            theirs, ours = post(live, path + query, **body), live.speak(seed=7, stream=stream, **own)
            assert theirs.content == ours.content, (query, body)
            assert theirs.headers["Content-Type"] == ours.headers["Content-Type"]
            assert "X-Ignored-Fields" not in theirs.headers
    assert live.services.speech.stream.__self__.requests[-1].voice == "default", "whose other name is alloy"


def test_what_has_no_effect_is_named_or_refused(live):
    body = {"previous_text": "x", "temperature": 0.1, "input": "y", "voice_settings": {"stability": 1}}
    reply = post(live, f"{SPEAK}?optimize_streaming_latency=3&enable_logging=false", **body)
    named = "voice_settings.stability, previous_text, body.temperature, body.input, optimize_streaming_latency"
    assert reply.headers["X-Ignored-Fields"] == named
    assert live.services.speech.stream.__self__.requests[-1].text == "Hello there."
    reply = post(live, f"{SPEAK}?strict=1", **body)
    assert (reply.status_code, reply.json()["detail"]["status"]) == (400, "unknown_field")


def test_every_refusal_has_their_envelope_and_none_of_the_clients_words(live):
    cases: list[tuple[str, dict[str, Any], int, str]] = [
        (f"/v1/text-to-speech/{CANARY}", {}, 404, "voice_not_found"),
        (SPEAK, {"text": ""}, 400, "out_of_range"),
        (SPEAK, {"text": 5}, 400, "invalid_type"),
        (SPEAK, {"text": CANARY * 5000}, 400, "max_character_limit_exceeded"),
        (SPEAK, {"model_id": CANARY}, 404, "model_not_found"),
        (SPEAK, {"seed": -2}, 400, "out_of_range"),
        (SPEAK, {"voice_settings": {"speed": 99}}, 400, "out_of_range"),
        (SPEAK, {"pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": "none"}]}, 400, "lexicon_not_found"),
        (f"{SPEAK}?output_format={CANARY}", {}, 400, "unsupported_format"),
        (f"{SPEAK}/with-timestamps", {"text": ""}, 400, "out_of_range"),
        (f"{SPEAK}/stream/with-timestamps", {"seed": -2}, 400, "out_of_range"),
        (f"{SPEAK}/nothing", {}, 404, "not_found"),
        ("/v1/voices", {}, 405, "method_not_allowed"),
    ]
    for path, body, status, name in cases:
        reply = post(live, path, **body)
        detail = reply.json()["detail"]
        assert (reply.status_code, detail["status"]) == (status, name), (path, body)
        assert detail.keys() == {"status", "message", "request_id"}
        assert detail["request_id"] == reply.headers["X-Request-ID"]
        assert CANARY not in reply.text


def test_voices_and_models(live):
    voices = get(live, "/v1/voices")["voices"]
    assert [voice["voice_id"] for voice in voices] == [voice["id"] for voice in get(live, "/v1/audio/voices")["voices"]]
    assert {"voice_id", "name", "category", "labels", "settings", "preview_url"} <= voices[0].keys()
    ids, token = [], "0"
    while token is not None:
        page = get(live, f"/v2/voices?page_size=1&next_page_token={token}")
        assert (len(page["voices"]), page["total_count"]) == (1, len(voices))
        assert page["has_more"] == (page["next_page_token"] is not None)
        ids, token = [*ids, page["voices"][0]["voice_id"]], page["next_page_token"]
    assert ids == [voice["voice_id"] for voice in voices]
    last = voices[-1]["voice_id"]
    assert [voice["voice_id"] for voice in get(live, f"/v2/voices?voice_ids={last}&voice_ids=nobody")["voices"]] == [last]
    assert [voice["voice_id"] for voice in get(live, "/v2/voices?voice_ids=nobody,ALLOY")["voices"]] == ["default"]
    assert [voice["voice_id"] for voice in get(live, "/v2/voices?search=Alloy")["voices"]] == ["default"]
    assert get(live, "/v2/voices?voice_ids=nobody")["voices"] == []
    assert len(get(live, f"/v2/voices?voice_ids={','.join(['alloy'] * 1000)}")["voices"]) == 1
    many = get(live, f"/v2/voices?voice_ids={','.join(map(str, range(MOST_VOICE_IDS + 1)))}")
    assert many["detail"]["status"] == "out_of_range"
    assert get(live, "/v2/voices?search=no-such-voice&include_total_count=false") == {
        "voices": [],
        "has_more": False,
        "next_page_token": None,
    }
    assert get(live, "/v2/voices?category=cloned")["voices"] == []
    by_name = [voice["name"] for voice in get(live, "/v2/voices?sort=name&sort_direction=asc&voice_type=default")["voices"]]
    assert by_name == sorted(by_name) == sorted(voice["name"] for voice in voices)
    assert [voice["name"] for voice in get(live, "/v2/voices?sort=name")["voices"]] == by_name[::-1]
    assert get(live, "/v2/voices?voice_type=personal")["voices"] == get(live, "/v2/voices?voice_type=community")["voices"] == []
    novel = requests.get(f"{live.url}/v2/voices?novel=1", timeout=60)
    assert (novel.status_code, novel.headers["X-Ignored-Fields"]) == (200, "novel")
    assert get(live, f"/v1/voices/{last}")["name"] == voices[-1]["name"]
    assert get(live, f"/v1/voices/{last}/settings") == get(live, "/v1/voices/settings/default")
    assert get(live, "/v1/voices/nobody")["detail"]["status"] == "voice_not_found"
    theirs = get(live, "/v1/models", **{"xi-api-key": "none"})
    assert theirs == get(live, "/elevenlabs/v1/models")
    assert [model["model_id"] for model in theirs] == [model["id"] for model in get(live, "/v1/models")["data"]]


def test_a_key_is_needed(store):
    key, _ = add(store)
    with guarded(Authenticator(ring_of(store))) as live:
        for path in ("/v1/voices", "/v2/voices", "/elevenlabs/v1/models", "/v1/voices/settings/default"):
            assert get(live, path)["detail"]["status"] == "missing_api_key"
            assert "detail" not in get(live, path, **{"xi-api-key": key})
        assert post(live, SPEAK).json()["detail"]["status"] == "missing_api_key"


# ElevenLabs' dialogues, accounts and changes of voices on the wire.


DIALOGUE = "/v1/text-to-dialogue"
TURNS = [{"text": "Is this <you> & me?", "voice_id": "alloy"}, {"text": "Yes.\nIt is.", "voice_id": "calm"}]


def post_json(live: Live, path: str, **body: Any) -> requests.Response:
    return requests.post(live.url + path, json=body, timeout=60)


def refused(reply: requests.Response, status: int, name: str) -> str:
    detail = reply.json()["detail"]
    assert (reply.status_code, detail["status"]) == (status, name), reply.text
    assert detail["request_id"] == reply.headers["X-Request-ID"] == reply.headers["request-id"]
    assert CANARY not in reply.text
    message: str = detail["message"]
    return message


def test_a_dialogue_is_one_request_with_the_voice_of_each_turn(live: Live):
    own = live.speak(
        input='<speak><voice name="alloy">Is this &lt;you&gt; &amp; me?</voice>'
        '<voice name="calm"><s>Yes.</s><s>It is.</s></voice></speak>',
        input_type="ssml",
        seed=7,
    )
    for path in (DIALOGUE, f"{DIALOGUE}/stream"):
        reply = post_json(
            live, f"{path}?output_format=pcm_24000", inputs=TURNS, seed=7, settings={"stability": 0.5}, future_text="x"
        )
        assert reply.content == own.content
        request = live.services.speech.stream.__self__.requests[-1]
        assert [(each.text.strip(), each.prosody.voice) for each in request.passages] == [
            ("Is this <you> & me?", "default"),
            ("Yes.\nIt is.", "calm"),
        ]
        assert reply.headers["X-Ignored-Fields"] == "settings.stability, future_text"
        assert reply.headers["character-cost"] == str(len(request.text))
        assert reply.headers["request-id"] == reply.headers["X-Request-ID"] == request.request_id


def test_turns_of_one_voice_in_a_row_stay_apart(live: Live):
    inputs = [{"text": text, "voice_id": "alloy"} for text in ("It is", "late.")]
    assert post_json(live, DIALOGUE, inputs=inputs, seed=7).status_code == 200
    assert live.services.speech.stream.__self__.requests[-1].text == "It is late."


def test_a_dialogue_takes_any_character(live: Live):
    said = "\x00 a\ud800\ufffe 'quoted' \"twice\" ]]> <!-- & \U0001f600".encode("utf-16", "surrogatepass").decode(
        "utf-16", "ignore"
    )
    reply = post_json(live, DIALOGUE, inputs=[{"text": said, "voice_id": "alloy"}])
    assert reply.status_code == 200, reply.text
    assert "quoted" in live.services.speech.stream.__self__.requests[-1].text


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        ({"inputs": []}, 400, "out_of_range"),
        ({"inputs": [{"text": "", "voice_id": "alloy"}]}, 400, "out_of_range"),
        ({"inputs": [{"text": "x"}]}, 400, "missing_field"),
        ({}, 400, "missing_field"),
        ({"inputs": [{"text": "x", "voice_id": CANARY}]}, 404, "voice_not_found"),
        ({"inputs": [{"text": "x", "voice_id": f"seed:{number}"} for number in range(11)]}, 400, "out_of_range"),
        ({"inputs": [{"text": "x", "voice_id": "alloy"}] * 51}, 400, "out_of_range"),
        ({"inputs": [{"text": "x" * 30_000, "voice_id": "alloy"}]}, 400, "max_character_limit_exceeded"),
        ({"inputs": TURNS, "model_id": CANARY}, 404, "model_not_found"),
    ],
)
def test_refused_dialogues(live: Live, body: dict[str, Any], status: int, name: str):
    refused(post_json(live, DIALOGUE, **body), status, name)


def test_refused_dialogues_with_times(live: Live):
    for path in ("/with-timestamps", "/stream/with-timestamps"):
        refused(post_json(live, DIALOGUE + path, inputs=[]), 400, "out_of_range")


def test_headers_of_a_reply(live: Live):
    for path in ("/v1/text-to-speech/alloy", "/v1/text-to-speech/alloy/stream"):
        reply = post_json(live, path, text="Hello there.")
        assert reply.headers["character-cost"] == "12"
        assert reply.headers["request-id"] == reply.headers["X-Request-ID"]
    assert "character-cost" not in live.speak().headers


def test_a_user_without_a_key_has_no_count(live: Live):
    user = requests.get(f"{live.url}/v1/user", timeout=60).json()
    assert user["user_id"] == "anonymous"
    assert user["subscription"] == requests.get(f"{live.url}/v1/user/subscription", timeout=60).json()
    assert (user["subscription"]["character_count"], user["subscription"]["character_limit"]) == (0, 2**31 - 1)
    assert not user["subscription"]["can_use_instant_voice_cloning"]


def test_the_subscription_is_the_keys_quota_to_the_character(store: Store):
    key, key_id = add(store, quota=Quota(characters_a_day=30))
    headers = {"xi-api-key": key}
    with guarded(Authenticator(ring_of(store))) as live:
        refused(requests.get(f"{live.url}/v1/user", timeout=60), 401, "missing_api_key")
        for used, status in ((0, 200), (12, 200), (24, 401), (24, 401)):
            said = requests.get(f"{live.url}/v1/user", headers=headers, timeout=60).json()
            assert (said["user_id"], said["subscription"]["character_count"]) == (key_id, used)
            assert said["subscription"]["character_limit"] == 30
            assert said["subscription"]["next_character_count_reset_unix"] % 86_400 == 0
            assert key not in json.dumps(said)
            spoken = requests.post(
                f"{live.url}/v1/text-to-speech/alloy", json={"text": "Hello there."}, headers=headers, timeout=60
            )
            assert spoken.status_code == status


def form(live: Live, path: str, content: bytes | None = None, **fields: str) -> requests.Response:
    files = [("files", ("a.wav", content))] if content is not None else [("nothing", (None, ""))]
    return requests.post(live.url + path, data=fields, files=files, timeout=60)  # type: ignore[arg-type]


@pytest.mark.slow
def test_voices_are_added_edited_and_deleted(tmp_path: Path):
    content = written(*spoken(SAID, tmp_path))
    labels = {"ref_text": SAID, "consent": "me, for tests", "language": "en", "accent": "none"}
    with voice_server(tmp_path) as live:
        reply = form(live, "/v1/voices/add", content, name="me", labels=json.dumps(labels), remove_background_noise="true")
        assert reply.json() == {"voice_id": "me", "requires_verification": False}
        assert reply.headers["X-Ignored-Fields"] == "remove_background_noise, labels.accent"
        card = requests.get(f"{live.url}/v1/voices/me", timeout=60).json()
        assert (card["category"], card["labels"]["language"], card["is_owner"]) == ("cloned", "en", True)
        assert requests.get(f"{live.url}/v1/audio/voices/me", timeout=60).json()["consent"]
        refused(form(live, "/v1/voices/add", content, name="me", labels=json.dumps(labels)), 409, "voice_exists")
        reply = form(live, "/v1/voices/me/edit", name="myself", description="a test", remove_background_noise="false")
        assert (reply.json(), "X-Ignored-Fields" in reply.headers) == ({"status": "ok"}, False)
        card = requests.get(f"{live.url}/v1/voices/me", timeout=60).json()
        assert (card["name"], card["description"]) == ("myself", "a test")
        refused(form(live, "/v1/voices/me/edit", content, name="x"), 400, "voice_sound_fixed")
        refused(form(live, "/v1/voices/me/edit"), 400, "missing_field")
        refused(form(live, f"/v1/voices/{CANARY}/edit", name="x"), 404, "voice_not_found")
        refused(form(live, "/v1/voices/default/edit", name="x"), 403, "voice_read_only")
        reply = requests.delete(f"{live.url}/v1/voices/me", timeout=60)
        assert reply.json() == {"status": "ok"}
        refused(requests.delete(f"{live.url}/v1/voices/me", timeout=60), 404, "voice_not_found")


@pytest.mark.parametrize(
    ("labels", "status", "name"),
    [
        (None, 400, "missing_field"),
        ("{", 400, "invalid_type"),
        ('"x"', 400, "invalid_type"),
        ({"ref_text": SAID}, 400, "missing_field"),
        ({"ref_text": SAID, "consent": False}, 400, "missing_field"),
        ({"consent": "true"}, 400, "missing_field"),
        ({"ref_text": SAID, "consent": "true", "language": CANARY * 9}, 400, "out_of_range"),
        ({"ref_text": SAID, "consent": "true"}, 422, "reference_rejected"),
    ],
)
def test_voices_that_cannot_be_added(tmp_path: Path, labels: Any, status: int, name: str):
    said = {} if labels is None else {"labels": labels if isinstance(labels, str) else json.dumps(labels)}
    with voice_server(tmp_path) as live:
        message = refused(form(live, "/v1/voices/add", b"RIFF no sound", name="me", **said), status, name)
        assert status != 400 or "labels" in message or "languages" in message
        refused(form(live, "/v1/voices/add", name="me", labels='{"ref_text": "a", "consent": "b"}'), 400, "missing_field")


def test_what_this_service_does_not_do_is_refused(live: Live):
    labels = json.dumps({"ref_text": SAID, "consent": "true"})
    refused(form(live, "/v1/voices/add", b"x", name="me", labels=labels), 403, "clone_disabled")
    refused(post_json(live, "/v1/voices/alloy/settings/edit", stability=0.5), 400, "settings_not_stored")
    refused(requests.delete(f"{live.url}/v1/voices/default", timeout=60), 403, "voice_read_only")


# ElevenLabs' pronunciation dictionaries: made of rules or of a file, listed, and spoken with.


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


def get_dictionary(live: Live, path: str = "") -> Any:
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
        assert get_dictionary(live, f"/{one['id']}")["rules"][0] == THAILAND
        assert [listed["id"] for listed in get_dictionary(live)["pronunciation_dictionaries"]] == [one["id"]]
        locators = [{"pronunciation_dictionary_id": one["id"], "version_id": one["version_id"]}]
        body = {"text": "Thailand.", "pronunciation_dictionary_locators": locators}
        assert requests.post(f"{live.url}/v1/text-to-speech/alloy", json=body, timeout=60).status_code == 200
        assert live.services.speech.stream.__self__.requests[-1].lexicon == lexicons.get(one["id"])


def test_a_dictionary_of_a_file_has_a_rule_for_each_way_to_write_a_word(store: Store):
    with serving(make_services(Speaker(), lexicons=LexiconLibrary(store))) as live:
        reply = filed(live, PLS, description="x")
        assert reply.headers["X-Ignored-Fields"] == "description, rules.phoneme"
        rules = get_dictionary(live, f"/{reply.json()['id']}")["rules"]
        assert {rule["string_to_replace"]: rule["alias"] for rule in rules} == dict.fromkeys(
            ("Claughton", "Claghton"), "Cloffton"
        )


def test_rules_are_set_added_and_removed(store: Store):
    with serving(make_services(Speaker(), lexicons=LexiconLibrary(store))) as live:
        name = made(live, THAILAND).json()["id"]

        def changed(change: str, **fields: Any) -> tuple[int, set[str]]:
            reply = requests.post(f"{live.url}{PATH}/{name}/{change}-rules", json=fields, timeout=60)
            return reply.status_code, {rule["string_to_replace"] for rule in get_dictionary(live, f"/{name}")["rules"]}

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
        assert {rule["string_to_replace"] for rule in get_dictionary(live, f"/{name}")["rules"]} == {"Thailand", *words}


def test_a_dictionary_that_is_deleted_meanwhile_leaves_the_list_of_the_others(store: Store, monkeypatch: pytest.MonkeyPatch):
    lexicons = LexiconLibrary(store)
    with serving(make_services(Speaker(), lexicons=lexicons)) as live:
        made(live, THAILAND)
        monkeypatch.setattr(lexicons, "get", Mock(side_effect=UnknownLexicon("no such lexicon")))
        assert len(get_dictionary(live)["pronunciation_dictionaries"]) == 1


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
