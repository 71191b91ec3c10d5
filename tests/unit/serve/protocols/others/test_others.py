"""Protocols of one route each: what their fields do, what they are told of those without effect, and what is refused."""

import base64
import json
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.protocols.others.kokoro import CaptionedBody
from serve.protocols.others.piper import PiperBody
from serve.protocols.others.vapi import VapiQuery
from tests.support.demo_voice import demo_speaker
from tests.support.effort import examples
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import CANARY, Live, serving
from tests.support.pages import section

TEXT = "Hello there."
CAPTIONED, PIPER, VAPI = "/dev/captioned_speech", "/piper", "/vapi"


def said(live: Live, path: str, body: Any, **options: Any) -> requests.Response:
    return requests.post(f"{live.url}{path}", json=body, timeout=60, **options)


def voice_request(**fields: Any) -> dict[str, Any]:
    return {"message": {"type": "voice-request", "text": TEXT, "sampleRate": 24000, **fields}}


def lines_of(reply: requests.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.text.splitlines()]


def audio_of(reply: requests.Response) -> bytes:
    return b"".join(base64.b64decode(line["audio"]) for line in lines_of(reply))


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ({}, {}),
        ({"model": "kokoro", "voice": "alloy", "speed": 1.5}, {"voice": "alloy", "speed": 1.5}),
        ({"lang_code": "a"}, {"language": "en-US"}),
        ({"lang_code": "zh"}, {"language": "zh"}),
        ({"volume_multiplier": 0.5, "stream": False}, {"post": {"gain_db": -6.020599913279624}}),
        ({"normalization_options": {"normalize": False}}, {"normalize": False}),
        ({"response_format": "wav"}, {"response_format": "wav"}),
    ],
)
def test_kokoros_fields_have_the_effect_of_the_services_own(live: Live, fields, own):
    stream = {"stream": fields.get("stream", True)}
    reply = said(live, CAPTIONED, {"input": TEXT, "response_format": "pcm", "seed": 7, "return_timestamps": False, **fields})
    assert reply.status_code == 200, reply.text
    assert "X-Ignored-Fields" not in reply.headers
    assert audio_of(reply) == live.speak(**({"input": TEXT, "seed": 7} | stream | own)).content


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_kokoros_captions_have_every_word_before_its_audio_ends(stream):
    text = "I think that my sister wanted the answer."
    with demo_speaker() as speaker, serving(make_services(speaker)) as live:
        fields = {"input": text, "response_format": "pcm", "seed": 1, "stream": stream}
        reply = said(live, CAPTIONED, fields)
        own = live.speak(**fields, timestamps="word", **({"stream_format": "sse"} if stream else {}))
    lines, heard_s = lines_of(reply), 0.0
    assert reply.headers["Content-Type"] == "application/json"
    assert len(lines) == 1 or stream
    for line in lines:
        assert line["audio_format"] == "audio/pcm"
        assert all(word["end_time"] >= heard_s for word in line["timestamps"])
        heard_s += len(base64.b64decode(line["audio"])) / 48_000
    words = [word for line in lines for word in line["timestamps"]]
    assert [word["word"] for word in words] == text.removesuffix(".").split()
    assert all(word["start_time"] < word["end_time"] <= heard_s for word in words)
    if not stream:
        assert words == [{"word": w["text"], "start_time": w["start"], "end_time": w["end"]} for w in own.json()["words"]]


PIPERS_FIELDS = {"voice": "calm", "length_scale": 2.0, "seed": 7}
AS_PIPER: dict[str, tuple[str, str, dict[str, Any]]] = {  # what the documentation of its releases shows, with all fields
    "1.2, GET": ("GET", PIPER, {"params": {"text": TEXT, **PIPERS_FIELDS}}),
    "1.2, GET /": ("GET", f"{PIPER}/", {"params": {"text": TEXT, **PIPERS_FIELDS}}),
    "1.2, POST": ("POST", PIPER, {"data": TEXT, "params": PIPERS_FIELDS, "headers": {"Content-Type": "text/plain"}}),
    "1.4, POST without a type": ("POST", PIPER, {"data": json.dumps({"text": TEXT, **PIPERS_FIELDS})}),
    "1.4, POST": ("POST", PIPER, {"json": {"text": TEXT, **PIPERS_FIELDS}}),
    "1.4, POST /": ("POST", f"{PIPER}/", {"json": {"text": TEXT, **PIPERS_FIELDS}}),
    "1.8": ("POST", f"{PIPER}/synthesize", {"json": {"text": TEXT, **PIPERS_FIELDS}}),
}


@pytest.mark.parametrize("release", AS_PIPER)
def test_pipers_fields_have_the_effect_of_the_services_own(release: str):
    speaker, (method, path, options) = Speaker(), AS_PIPER[release]
    with serving(make_services(speaker)) as live:
        reply = requests.request(method, f"{live.url}{path}", timeout=60, **options)
    assert reply.status_code == 200, reply.text
    assert reply.headers["Content-Type"] == "audio/wav"
    assert reply.content[:4] == b"RIFF"
    assert "X-Ignored-Fields" not in reply.headers
    request = speaker.requests[-1]
    assert (request.text, request.voice, request.speed, request.sampling.seed) == (TEXT, "calm", 0.5, 7)


def test_every_voice_that_piper_lists_speaks(live: Live):
    for name, config in requests.get(f"{live.url}{PIPER}/voices", timeout=60).json().items():
        assert (config["audio"], config["num_speakers"]) == ({"sample_rate": 24_000}, 1)
        assert requests.get(f"{live.url}{PIPER}", {"text": TEXT, "voice": name}, timeout=60).status_code == 200


def test_a_query_of_piper_is_checked_as_its_body(live: Live):
    reply = requests.get(f"{live.url}{PIPER}", {"text": TEXT, "noise_scale": 0.6, "speed": 2}, timeout=60)
    assert reply.headers["X-Ignored-Fields"] == "noise_scale, query.speed"
    for query, code in (({}, "missing_field"), ({"text": TEXT, "length_scale": "slow"}, "out_of_range"), ({"text": ""}, None)):
        reply = requests.get(f"{live.url}{PIPER}", query, timeout=60)
        assert (reply.status_code, code) in ((400, reply.json()["error"]["code"]), (400, None))


def test_vapi_is_given_samples_at_its_rate(live: Live):
    about = {"timestamp": 1, "call": {"id": "c"}, "assistant": {}, "customer": {"number": "+1"}}
    for rate in (8000, 16_000, 22_050, 24_000):
        vapi = said(live, f"{VAPI}?voice=alloy&seed=7", voice_request(sampleRate=rate, **about))
        assert vapi.headers["Content-Type"] == "application/octet-stream"
        assert "X-Ignored-Fields" not in vapi.headers
        assert vapi.content == live.speak(input=TEXT, voice="alloy", seed=7, sample_rate=rate).content


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (CAPTIONED, {"input": TEXT, "download_format": "wav", "voice_x": 1}, "download_format, voice_x"),
        (
            CAPTIONED,
            {"input": TEXT, "normalization_options": {"url_normalization": True}},
            "normalization_options.url_normalization",
        ),
        (
            PIPER,
            {"text": TEXT, "speaker_id": 0, "noise_scale": 0.6, "noise_w_scale": 0.8},
            "speaker_id, noise_scale, noise_w_scale",
        ),
        (VAPI, voice_request(pitch=2), "pitch"),
        (f"{VAPI}?pitch=2&input=x", voice_request(), "pitch, query.input"),
    ],
)
def test_what_has_no_effect_is_named_or_refused(live: Live, path, body, named):
    assert said(live, path, body).headers["X-Ignored-Fields"] == named
    strict = said(live, f"{path}{'&' if '?' in path else '?'}strict=1", body)
    assert strict.status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (CAPTIONED, {}, 400, "missing_field"),
        (CAPTIONED, {"input": TEXT, "voice": CANARY}, 400, "voice_not_found"),
        (CAPTIONED, {"input": TEXT, "model": CANARY}, 404, "model_not_found"),
        (CAPTIONED, {"input": TEXT, "lang_code": "j" * 36}, 400, "out_of_range"),
        (CAPTIONED, {"input": TEXT, "volume_multiplier": 0}, 400, "out_of_range"),
        (CAPTIONED, {"input": TEXT, "return_download_link": True}, 400, "download_link_not_supported"),
        (PIPER, {"text": ""}, 400, "out_of_range"),
        (PIPER, {"text": TEXT, "length_scale": 0}, 400, "out_of_range"),
        (PIPER, {"text": TEXT, "voice": CANARY}, 400, "voice_not_found"),
        (VAPI, {"message": {"type": "tool-calls"}}, 400, None),
        (VAPI, voice_request(sampleRate=12_345), 400, "unsupported_format"),
        (f"{VAPI}?voice={CANARY}", voice_request(), 400, "voice_not_found"),
        (f"{VAPI}?seed=x", voice_request(), 400, "out_of_range"),
    ],
)
def test_what_is_refused_has_the_error_of_its_protocol(live: Live, path, body, status, code):
    reply = said(live, path, body)
    assert reply.status_code == status, reply.text
    assert CANARY not in reply.text
    if path == CAPTIONED:
        assert reply.json()["detail"].keys() == {"error", "message", "type"}
        assert reply.json()["detail"]["error"] == code
    else:
        assert code in (None, reply.json()["error"]["code"])


def test_a_full_service_says_so_to_each_of_them():
    services = make_services(Speaker())
    services.speech.admission.close()
    with serving(services) as live:
        for path, body in ((CAPTIONED, {"input": TEXT}), (PIPER, {"text": TEXT}), (VAPI, voice_request())):
            reply = said(live, path, body)
            assert reply.status_code == 503
            assert "Retry-After" in reply.headers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    (
        *("input", "text", "voice", "model", "stream", "speed", "lang_code", "normalization_options", "volume_multiplier"),
        *("length_scale", "speaker", "message", "sampleRate", "type", "return_timestamps", "response_format"),
    )
)


@settings(max_examples=examples(25), deadline=None)
@given(path=st.sampled_from((CAPTIONED, PIPER, VAPI)), body=st.dictionaries(FIELDS, JSON, max_size=6) | JSON)
def test_whatever_is_sent_is_answered_and_is_never_a_fault_of_the_service(live: Live, path, body):
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    reply = requests.post(f"{live.url}{path}", data=raw, headers={"Content-Type": "application/json"}, timeout=60)
    assert reply.status_code in (200, 400, 404, 413)


def test_the_page_names_every_field():
    for title, model in (("Kokoro", CaptionedBody), ("Piper", PiperBody), ("Vapi", VapiQuery)):
        for name in set(model.model_fields) - {"strict"}:
            assert f"`{name}`" in section("docs/clients.md", title), name
