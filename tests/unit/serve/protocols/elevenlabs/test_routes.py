"""ElevenLabs' HTTP routes on the wire: what is translated, named, listed and refused."""

from typing import Any

import requests

from serve.access.authentication import Authenticator
from serve.protocols.elevenlabs.routes import MOST_VOICE_IDS
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import CANARY, Live

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
