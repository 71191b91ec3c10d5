"""ElevenLabs' dialogues, accounts and changes of voices on the wire."""

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.store.store import Store
from serve.access.api_keys import Quota
from serve.access.authentication import Authenticator
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import CANARY, Live
from tests.support.recordings import SAID, spoken, written
from tests.support.voice_routes import voice_server

DIALOGUE = "/v1/text-to-dialogue"
TURNS = [{"text": "Is this <you> & me?", "voice_id": "alloy"}, {"text": "Yes.\nIt is.", "voice_id": "calm"}]


def post(live: Live, path: str, **body: Any) -> requests.Response:
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
        reply = post(
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
    assert post(live, DIALOGUE, inputs=inputs, seed=7).status_code == 200
    assert live.services.speech.stream.__self__.requests[-1].text == "It is late."


def test_a_dialogue_takes_any_character(live: Live):
    said = "\x00 a\ud800\ufffe 'quoted' \"twice\" ]]> <!-- & \U0001f600".encode("utf-16", "surrogatepass").decode(
        "utf-16", "ignore"
    )
    reply = post(live, DIALOGUE, inputs=[{"text": said, "voice_id": "alloy"}])
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
    refused(post(live, DIALOGUE, **body), status, name)


def test_refused_dialogues_with_times(live: Live):
    for path in ("/with-timestamps", "/stream/with-timestamps"):
        refused(post(live, DIALOGUE + path, inputs=[]), 400, "out_of_range")


def test_headers_of_a_reply(live: Live):
    for path in ("/v1/text-to-speech/alloy", "/v1/text-to-speech/alloy/stream"):
        reply = post(live, path, text="Hello there.")
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
    refused(post(live, "/v1/voices/alloy/settings/edit", stability=0.5), 400, "settings_not_stored")
    refused(requests.delete(f"{live.url}/v1/voices/default", timeout=60), 403, "voice_read_only")
