"""The routes that look at a text, on a real socket over fakes."""

import re
from typing import Any

import pytest
import requests

from pipeline.store.sqlite import SqliteStore
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from serve.config.app_config import LimitsConfig
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import Live, serving


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    store = SqliteStore(tmp_path_factory.mktemp("lexicons") / "store")
    with serving(make_services(Speaker(), lexicons=LexiconLibrary(store))) as server:
        yield server


def post(live: Live, route: str, **body: object) -> requests.Response:
    return requests.post(f"{live.url}{route}", json=body, timeout=60)


def refusal(reply: requests.Response) -> tuple[int, str, str | None]:
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


def test_normalize_tells_what_became_of_every_character(live):
    text = "We are in room 12 😀. 第3间。"
    shown = post(live, "/v1/text/normalize", input=text).json()
    assert "twelve" in shown["text"]
    assert "三" in shown["text"]
    assert shown["warnings"] == [{"code": "emoji", "count": 1}]
    assert shown["dropped"] == [[18, 19]]
    places = [place for segment in shown["segments"] for span in segment["spans"] for place in range(*span["source"])]
    assert sorted({*places, *(place for start, stop in shown["dropped"] for place in range(start, stop))}) == list(
        range(len(text))
    )
    for segment in shown["segments"]:
        assert all(0 <= span["spoken"][0] <= span["spoken"][1] <= len(segment["text"]) for span in segment["spans"])


@pytest.mark.parametrize(
    "body",
    [
        {"input": "在重庆 X。", "lexicon": {"重庆": {"pinyin": "chong2 qing4"}}},
        {"input": "<speak>在<phoneme alphabet='x-pinyin' ph='chong2 qing4'>重庆</phoneme>。</speak>", "input_type": "ssml"},
    ],
)
def test_pinyin_stands_at_the_characters_that_it_was_written_for(live, body: dict[str, Any]):
    spans = [span for segment in post(live, "/v1/text/normalize", **body).json()["segments"] for span in segment["spans"]]
    assert [span["source"][0] for span in spans if span["pinyin"] == "chong2 qing4"] == [1]
    assert [span for span in spans if span["pinyin"] not in (None, "chong2 qing4")] == []


def test_a_plan_predicts_and_speaks_nothing(live):
    shown = post(live, "/v1/audio/speech/plan", input="Hello there. 你好。", speed=2.0, voice="nova", user="x").json()
    assert shown["voice"] == "default"
    assert shown["predicted_steps"] == sum(segment["steps"] for segment in shown["segments"]) > 0
    assert shown["predicted_seconds"] == pytest.approx(shown["predicted_steps"] * 512 / 24_000 / 2, abs=0.01)
    assert shown["ignored_fields"] == ["user"]
    assert live.services.speech.admission.in_flight == 0


def test_a_plan_of_ssml_has_voices_rates_and_silence(live):
    document = (
        '<speak>One.<break time="250ms"/><voice name="calm"><prosody rate="2">Two.</prosody></voice><break time="1s"/></speak>'
    )
    shown = post(live, "/v1/audio/speech/plan", input=document, input_type="ssml").json()
    segments = [(s["text"], s["voice"], s["rate"], s["silence_ms"]) for s in shown["segments"]]
    assert segments == [("One.", "default", 1.0, 0), ("Two.", "calm", 2.0, 250)]
    assert shown["closing_silence_ms"] == 1000
    assert shown["predicted_seconds"] > 1.25


def test_ssml_shows_how_a_document_is_understood(live):
    document = '<speak>Call <say-as interpret-as="digits">110</say-as><mark name="m"/><foo>now</foo></speak>'
    shown = post(live, "/v1/text/ssml", input=document).json()
    (passage,) = shown["passages"]
    assert passage["hints"] == [{"start": 5, "stop": 8, "kind": "say-as", "value": "digits"}]
    assert shown["marks"] == [{"name": "m", "position": 8}]
    assert shown["warnings"] == [{"code": "unknown_element", "count": 1}]


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"input": "<speak>", "input_type": "ssml"}, (400, "invalid_ssml", "input")),
        ({"input": "<speak><voice name='nobody'>x</voice></speak>", "input_type": "ssml"}, (400, "voice_not_found", "input")),
        ({"input": "?!"}, (400, "no_speakable_text", "input")),
        ({"input": "x", "lexicon": ["unknown"]}, (400, "lexicon_not_found", "lexicon")),
        ({"input": "x", "lexicon": ["a", "b", "c", "d"]}, (400, "out_of_range", "lexicon")),
        ({"input": "x", "lexicon": {"w": {"alias": "a", "pinyin": "b1"}}}, (400, "out_of_range", "lexicon")),
        ({"input": "x", "lexicon": {"x": {"pinyin": "xyz9"}}}, (400, "invalid_lexicon", "lexicon")),
        ({"input": "x", "lexicon": {"a" * 65: "y"}}, (400, "out_of_range", "lexicon")),
        ({"input": "x", "normalize": {"emoji": "eat"}}, (400, "out_of_range", "normalize")),
        (
            {"input": "x", "normalize": False, "apply_text_normalization": "on"},
            (400, "conflicting_fields", "apply_text_normalization"),
        ),
        ({"input": "x" * 5000}, (400, "input_too_long", "input")),
        ({"input_type": "ssml"}, (400, "missing_field", "input")),
    ],
)  # fmt: skip
def test_mistakes_name_their_field(live, body, refused):
    for route in ("/v1/text/normalize", "/v1/audio/speech/plan"):
        assert refusal(post(live, route, **body)) == refused


def test_fields_without_effect_are_named(live):
    shown = post(live, "/v1/text/normalize", input="Hi.", colour="red", model="x", user="u").json()
    assert shown["ignored_fields"] == ["colour", "model", "user"], "they are fields of a request for speech"
    assert post(live, "/v1/text/normalize", input="Hi.").json()["ignored_fields"] == []
    body = {"input": "<speak>Hi.</speak>", "colour": "red", "lexicon": {"a": "b"}, "normalize": True}
    assert post(live, "/v1/text/ssml", **body).json()["ignored_fields"] == ["colour", "normalize", "lexicon"]
    assert post(live, "/v1/text/ssml", **body, input_type="text").json()["ignored_fields"][-1] == "input_type"
    for field in ({"lexicon": {"a": "b"}}, {"input_type": "text"}, {"colour": "red"}):
        refused = post(live, "/v1/text/ssml?strict=1", input=body["input"], **field)
        assert refusal(refused)[:2] == (400, "unknown_field"), field
    assert post(live, "/v1/text/ssml?strict=1", input=body["input"], input_type="ssml", language="zh").status_code == 200


def test_a_language_may_have_any_form_of_bcp_47(live):
    for tag in ("zh-CN", "zh-cn", "ZH"):
        assert post(live, "/v1/text/normalize", input="3", language=tag).json()["text"] == "三", tag
    assert post(live, "/v1/audio/speech/plan", input="3", language="en-US").json()["segments"][0]["text"] == "three"
    shown = post(live, "/v1/text/normalize", input="瀹茶3", language="yue").json()
    assert (shown["text"], shown["warnings"]) == ("瀹茶三", [{"code": "spoken_as_mandarin", "count": 2}])
    refused = post(live, "/v1/text/normalize?strict=1", input="瀹茶", language="yue")
    assert refusal(refused) == (400, "partly_unspeakable", "language")
    for name, text in (("Chinese", "三"), ("english", "three"), ("", "three"), ("Mandarin", "三")):
        assert post(live, "/v1/text/normalize?strict=1", input="3", language=name).json()["text"] == text
    for tag in ("fr", "fr-CA", "German", "zh cn", "日本語"):
        other = post(live, "/v1/text/normalize", input="3", language=tag).json()
        assert (other["text"], other["ignored_fields"]) == ("three", ["language"]), tag
        assert refusal(post(live, "/v1/text/normalize?strict=1", input="3", language=tag))[1] == "unknown_field"
    assert refusal(post(live, "/v1/text/normalize", input="3", language="x" * 36)) == (400, "out_of_range", "language")


def test_strict_refuses_what_cannot_be_honoured(live):
    document = {"input": "<speak><foo>x</foo></speak>", "input_type": "ssml"}
    assert post(live, "/v1/text/normalize", **document).status_code == 200
    assert refusal(post(live, "/v1/text/normalize?strict=1", **document)) == (400, "invalid_ssml", "input")
    assert refusal(post(live, "/v1/text/normalize?strict=1", input="x", colour="red"))[:2] == (400, "unknown_field")


def test_control_tags_are_the_operators_choice():
    def spoken(choice: str, **body: object) -> object:
        with serving(make_services(Speaker(), LimitsConfig(control_tags=choice))) as live:
            reply = post(live, "/v1/text/normalize", input="a [laugh] b", **body)
            return "[laugh]" in reply.json()["text"] if reply.ok else refusal(reply)[1]

    assert spoken("on_request") is False
    assert spoken("on_request", allow_control_tags=True) is True
    assert spoken("by_default") is True
    assert spoken("by_default", allow_control_tags=False) is False
    assert spoken("never") is False
    assert spoken("never", allow_control_tags=True) == "control_tags_not_allowed"


def test_refine_shows_the_difference_and_takes_a_place(live):
    shown = post(live, "/v1/text/refine", input="Hello there.", seed=4).json()
    assert shown["accepted"] is True
    assert shown["seed"] == 4
    assert shown["diff"][-1] == {"op": "insert", "source": "", "refined": "[laugh]"}


def test_lexicons_are_kept_used_and_removed(live):
    route = f"{live.url}/v1/lexicons/mine"
    stored = requests.put(route, json={"entries": {"cat": "dog", "重庆": {"pinyin": "chong2 qing4"}}}, timeout=60)
    assert stored.json() == {"id": "mine", "version": 1, "entries": 2}
    shown = requests.get(route, timeout=60).json()["entries"]
    assert shown == {"cat": {"alias": "dog", "pinyin": None}, "重庆": {"alias": None, "pinyin": "chong2 qing4"}}
    text = post(live, "/v1/text/normalize", input="A cat in 重庆.", lexicon=["mine"]).json()["text"]
    assert "dog" in text
    assert "崇庆" in text
    assert requests.delete(route, timeout=60).status_code == 204
    for reply in (requests.get(route, timeout=60), requests.delete(route, timeout=10)):
        assert refusal(reply) == (404, "lexicon_not_found", "id")


@pytest.mark.parametrize("lexicon_id", [".hidden", "a b", "x" * 65, "%00"])
def test_ids_are_plain(live, lexicon_id):
    assert refusal(requests.get(f"{live.url}/v1/lexicons/{lexicon_id}", timeout=60)) == (400, "out_of_range", "id")


WITHOUT_BODY = (
    "/v1/audio/voices",
    "/admin/",
    "/v1/single-use-token/",
    "/v1/voices/{name}/settings/edit",
    "/v1/audio/jobs/{job_id}/",
)


def test_the_document_describes_every_route_of_ours(live):
    document = requests.get(f"{live.url}/openapi.json", timeout=60).json()
    for path, operations in document["paths"].items():
        for name, operation in operations.items():
            assert "default" in operation["responses"], (path, name)
            if name in ("post", "put") and not path.startswith(WITHOUT_BODY):
                assert "requestBody" in operation, (path, name)
    assert "HTTPValidationError" not in str(document)
    named = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert named <= set(document["components"]["schemas"])
    assert "$defs" not in str(document)


def test_warnings_are_counted_in_a_header(live):
    assert "X-Text-Warnings" not in live.speak().headers
