"""The speech route: which fields reach the domain, and which are refused."""

import base64
import codecs
import json
import socket
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

from pipeline.config import PipelineConfig
from pipeline.types import AudioOptions, Denoise, SynthesisRequest
from serve.config.app_config import AppConfig
from serve.config.model_versions import versions_of
from serve.resilience.rollout import Rollout
from serve.speech.model_selection import ModelSelector
from serve.speech.schemas.base import read_body
from serve.speech.schemas.speech import SpeechBody
from tests.support.effort import examples
from tests.support.fakes import Speaker, make_services, only_model
from tests.support.live_server import CANARY, POST, Live, error_of, serving
from tests.support.model_versions import V1, V2, V3, rollout


def test_a_drawn_seed_repeats_the_audio(live):
    first = live.speak()
    seed = int(first.headers["X-Audio-Seed"])
    assert live.speak(seed=seed).content == first.content
    assert int(live.speak().headers["X-Audio-Seed"]) != seed


def test_audio_fields_reach_the_domain():
    speaker = Speaker()
    with serving(make_services(speaker)) as live:

        def options(**fields: object) -> AudioOptions:
            body = {"input": "x", **fields}
            assert requests.post(f"{live.url}/v1/audio/speech?strict=1", json=body, timeout=60).status_code == 200
            return speaker.requests[-1].audio

        assert options() == options(post=False) == options(post={}) == AudioOptions(), "nothing happens unasked"
        assert options(post=True) == AudioOptions(trim=True, fade_ms=5.0)
        full = {"trim": True, "denoise": "auto", "gain_db": -3.5, "loudness_lufs": -18, "fade_ms": 20}
        assert options(post=full, sample_rate=48_000) == AudioOptions(48_000, True, Denoise.AUTO, -3.5, -18, 20)
        assert options(output_format="ulaw_8000").sample_rate == options(response_format="alaw").sample_rate == 8_000


def test_fields_reach_the_domain():
    speaker = Speaker()
    with serving(make_services(speaker)) as live:
        live.speak(input="Hi", voice={"id": "calm"}, speed=1.5, speed_mode="token", seed=4294967295, seed_mode="upstream",
                   temperature=0.7, top_p=0.5, top_k=5, repetition_penalty=1.2,
                   refine={"oral": 9, "break": 7}, language="zh")  # fmt: skip
        live.speak(speed=2.0, refine=True)
        live.speak(speed=0.25, speed_mode="token")
    token, stretch, slow = speaker.requests
    assert (token.text, token.voice, token.language, token.speed, token.speed_token) == ("Hi", "calm", "zh", 1.0, 8)
    sampling = token.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (0.7, 0.5, 5, 1.2)
    assert (sampling.seed, sampling.seed_mode) == (4294967295, "upstream")
    assert (token.refine.oral, token.refine.laugh, token.refine.pause) == (9, 0, 7)
    assert (stretch.speed, stretch.speed_token) == (2.0, 5)
    assert stretch.refine.sampling.seed == stretch.sampling.seed
    assert (slow.speed, slow.speed_token) == (1.0, 1)


OPTIONAL = sorted(name for name, field in SpeechBody.model_fields.items() if not field.is_required())


@pytest.mark.parametrize("field", OPTIONAL)
def test_a_field_that_is_null_is_left_out(field: str):
    raw = json.dumps({"input": "x", "seed": 7, field: None}).encode()
    assert read_body(SpeechBody, raw) == read_body(
        SpeechBody, b'{"input": "x", "seed": 7}' if field != "seed" else b'{"input": "x"}'
    )
    assert read_body(SpeechBody, raw).model_fields_set == {"input", "seed"} - {field}


def test_what_clients_of_other_servers_send_is_understood():
    speaker = Speaker()
    with serving(make_services(speaker)) as live:

        def sent(**fields: object) -> tuple[SynthesisRequest, requests.Response]:
            reply = live.speak(**fields)
            assert reply.status_code == 200, reply.text
            return speaker.requests[-1], reply

        assert sent(voice="CALM")[0].voice == sent(speaker="calm")[0].voice == "calm"
        assert sent(language="English")[0].language == "en"
        german, reply = sent(language="German", voice="calm")
        assert (german.voice, german.language, reply.headers["X-Ignored-Fields"]) == ("calm", "auto", "language")
        assert sent(temperature=0)[0].sampling.temperature == 0.01
        assert sent(seed=-1)[0].sampling.seed != sent(seed=-1)[0].sampling.seed
        assert sent(references=[], ref_audio=None)[0].voice == "default"
        assert sent(instructions="Speak kindly. " * 300)[1].headers["X-Ignored-Fields"] == "instructions"
        for name, kind in (("MP3", "audio/mpeg"), ("ogg", "audio/ogg; codecs=opus"), ("WebM", 'audio/webm; codecs="opus"')):
            assert sent(response_format=name)[1].headers["Content-Type"] == kind
        for model in ("tts-1-1106", "TTS-1-HD-1106", "gpt-4o-mini-tts-2025-12-15", "openai/gpt-4o-mini-tts", "ChatTTS"):
            assert sent(model=model)[0].model == sent()[0].model
        assert live.post(codecs.BOM_UTF8 + json.dumps({"input": "x"}).encode()).status_code == 200


def test_models_of_others_are_aliases_by_configuration():
    models = ModelSelector(Rollout(versions_of(PipelineConfig(), {})), aliases=AppConfig().model_aliases | {"mine": "tts-1"})
    with serving(make_services(Speaker(), models=models)) as live:
        for name in ("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "QWEN/qwen3-tts-12hz-1.7b-customvoice", "orpheus", "Mine"):
            assert live.speak(model=name).status_code == 200
        assert error_of(live.speak(model="novel/model"))["code"] == "model_not_found"


def test_the_latency_is_the_requests_else_the_operators():
    config = PipelineConfig.model_validate({"speech": {"latency": "low"}})
    for models, default in ((only_model(), "exact"), (ModelSelector(Rollout(versions_of(config, {}))), "low")):
        speaker = Speaker()
        with serving(make_services(speaker, models=models)) as live:
            replies = [live.speak(**fields) for fields in ({}, {"latency": None}, {"latency": "low"}, {"latency": "exact"})]
        expected = [default, default, "low", "exact"]
        assert [request.scheduling.latency for request in speaker.requests] == expected
        assert [reply.headers["X-Latency"] for reply in replies] == expected


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"latency": CANARY}, 400, "out_of_range", "latency"),
        ({"input": ""}, 400, "out_of_range", "input"),
        ({"input": None}, 400, "missing_field", "input"),
        ({"input": 5}, 400, "invalid_type", "input"),
        ({"input": CANARY * 500}, 400, "input_too_long", "input"),
        ({"model": CANARY}, 404, "model_not_found", "model"),
        ({"voice": CANARY}, 400, "voice_not_found", "voice"),
        ({"voice": {"id": CANARY, "x": 1}}, 400, "invalid_type", "voice"),
        ({"voice": 7}, 400, "invalid_type", "voice"),
        ({"voice": ""}, 400, "voice_not_found", "voice"),
        ({"response_format": CANARY}, 400, "unsupported_format", "response_format"),
        ({"response_format": "opus", "sample_rate": 44_100}, 400, "unsupported_format", "sample_rate"),
        ({"sample_rate": 11_025}, 400, "unsupported_format", "sample_rate"),
        ({"sample_rate": "8000"}, 400, "invalid_type", "sample_rate"),
        ({"bitrate": 64}, 400, "unsupported_format", "bitrate"),
        ({"response_format": "mp3", "bitrate": 63}, 400, "unsupported_format", "bitrate"),
        ({"output_format": "pcm_16000"}, 400, "conflicting_fields", "response_format"),
        ({"post": "yes"}, 400, "out_of_range", "post"),
        ({"post": {"gain_db": 25}}, 400, "out_of_range", "post"),
        ({"post": {CANARY: 1}}, 400, "out_of_range", "post"),
        ({"post": {"denoise": True}}, 400, "out_of_range", "post"),
        ({"speed": 0.2}, 400, "out_of_range", "speed"),
        ({"speed": 4.1}, 400, "out_of_range", "speed"),
        ({"speed": "1"}, 400, "invalid_type", "speed"),
        ({"speed_mode": CANARY}, 400, "out_of_range", "speed_mode"),
        ({"seed": -2}, 400, "out_of_range", "seed"),
        ({"seed": 2**32}, 400, "out_of_range", "seed"),
        ({"seed": 1.5}, 400, "invalid_type", "seed"),
        ({"temperature": 0.001}, 400, "out_of_range", "temperature"),
        ({"top_p": 1.01}, 400, "out_of_range", "top_p"),
        ({"top_k": 627}, 400, "out_of_range", "top_k"),
        ({"repetition_penalty": 2.1}, 400, "out_of_range", "repetition_penalty"),
        ({"refine": {CANARY: 1}}, 400, "out_of_range", "refine"),
        ({"refine": {"oral": 10}}, 400, "out_of_range", "refine"),
        ({"refine": "yes"}, 400, "out_of_range", "refine"),
        ({"language": CANARY * 4}, 400, "out_of_range", "language"),
        ({"references": [{"audio": CANARY}]}, 400, "recording_not_supported", "references"),
        ({"ref_audio": CANARY, "ref_text": "x"}, 400, "recording_not_supported", "ref_audio"),
        ({"stream": 1}, 400, "invalid_type", "stream"),
        ({"stream_format": "ws"}, 400, "out_of_range", "stream_format"),
        ({"stream": False, "stream_format": "sse"}, 400, "conflicting_fields", "stream_format"),
        ({"deadline_ms": 49}, 400, "out_of_range", "deadline_ms"),
        ({"instructions": "x" * 16_385}, 400, "out_of_range", "instructions"),
    ],
)
def test_wrong_fields_are_named(live, fields, status, code, param):
    reply = live.speak(**fields)
    error = error_of(reply)
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param)
    assert reply.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"\xff\xfe", b'{"input": "x"', b'{"input": "x", "speed": NaN}', b'{"input": "x", "speed": 1e999}',
        b'{"input": "x", "speed": Infinity}', b'{"input": "\\ud800"}',
        b'{"input": "x", "y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"input": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}", b"[]", b'"x"', b"null", b"1",
    ],
    ids=range(14),
)  # fmt: skip
def test_broken_bodies_are_a_400(live, raw):
    reply = live.post(raw)
    assert reply.status_code == 400
    assert error_of(reply)["code"] in ("invalid_json", "out_of_range", "invalid_type")


def test_a_missing_input_is_named(live):
    reply = live.post(b"{}")
    assert (reply.status_code, error_of(reply)["code"], error_of(reply)["param"]) == (400, "missing_field", "input")


def test_text_length_counts_characters_not_bytes(live):
    assert live.speak(input="\u6f22" * 4096).status_code == 200
    reply = live.speak(input="\u6f22" * 4097)
    assert reply.status_code == 400
    assert "4097" in error_of(reply)["message"]
    assert "4096" in error_of(reply)["message"]


def test_strict_refuses_what_it_would_ignore(live):
    reply = requests.post(f"{live.url}/v1/audio/speech?strict=1", json={"input": "Hi.", CANARY: 1}, timeout=60)
    assert (reply.status_code, error_of(reply)["code"]) == (400, "unknown_field")
    assert requests.post(f"{live.url}/v1/audio/speech?strict=1", json={"input": "Hi."}, timeout=60).status_code == 200


def test_large_bodies_are_refused_as_they_arrive(live):
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
        client.sendall(f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(17):  # 1 MiB and 64 KiB of a body that never ends
            client.sendall(piece)
        assert b" 413 " in client.recv(4096)


# `stream_format: sse` on the wire, as LiveKit's plugin reads its lines and as the `openai` package hands them on.


TEXTS = st.text(st.sampled_from("ab 3.!\U0001f600中é\n"), min_size=1, max_size=60).map(lambda text: f"Hello{text}")


def events_in(lines: list[str]) -> list[dict[str, Any]]:
    """Reads as LiveKit's plugin does: only lines that begin so, each with a whole event, until the end or [DONE]."""
    data = [line[6:] for line in lines if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def check(live: Live, events: list[dict[str, Any]], **said: Any) -> None:
    """Checks events against the same text as a stream of audio and, for its usage, as a whole."""
    streamed, whole = live.speak(**said), live.speak(**said, stream=False)
    kinds = [event["type"] for event in events]
    assert kinds == (len(kinds) - 1) * ["speech.audio.delta"] + ["speech.audio.done"]
    assert [event["seq"] for event in events[:-1]] == list(range(len(events) - 1))
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == streamed.content
    characters, steps = (int(whole.headers[f"X-Usage-{name}"]) for name in ("Characters", "Audio-Tokens"))
    usage = {"input_tokens": characters, "output_tokens": steps, "total_tokens": characters + steps}
    assert events[-1]["usage"] == usage


@settings(max_examples=examples(25), deadline=None)
@given(text=TEXTS, container=st.sampled_from(["pcm", "mp3", "wav"]))
def test_every_line_is_one_that_clients_read(live: Live, text: str, container: str):
    said = {"input": text, "seed": 7, "response_format": container}
    reply = live.speak(**said, stream_format="sse")
    assert reply.headers["Content-Type"].split(";")[0] == "text/event-stream"
    lines = reply.content.decode().split("\n")
    names = [line[7:] for line in lines if line.startswith("event: ")]
    assert all(not line or line.startswith(("id: ", "event: ", "data: ")) for line in lines)
    events = events_in(lines)
    assert names == [event["type"] for event in events]
    check(live, events, **said)


@pytest.mark.slow  # the package takes seconds to load
def test_the_openai_package_hands_them_on(live: Live):
    client = OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    for model in ("gpt-4o-mini-tts", "chattts"):
        with client.audio.speech.with_streaming_response.create(
            input="Hello there.", model=model, voice="alloy", response_format="pcm", stream_format="sse", extra_body={"seed": 7}
        ) as reply:
            assert reply.headers["content-type"].split(";")[0] == "text/event-stream"
            check(live, events_in(list(reply.iter_lines())), seed=7)


# The models routes: licences of the weights, shares and states of versions.


@pytest.mark.parametrize(
    ("checkpoint", "name", "commercial"),
    [
        ("demo", "AGPL-3.0-or-later", True),
        ("small-random", "random numbers", True),
        ("hub:2Noise/ChatTTS", "CC-BY-NC-4.0", False),
        ("/some/folder", "unknown", None),
    ],
)
def test_models_say_what_their_weights_may_be_used_for(checkpoint, name, commercial):
    selector = ModelSelector(Rollout(versions_of(PipelineConfig(checkpoint=checkpoint), {})))
    with serving(make_services(Speaker(), models=selector)) as live:
        cards = requests.get(f"{live.url}/v1/models", timeout=9).json()["data"]
        one = requests.get(f"{live.url}/v1/models/tts-1", timeout=9).json()
    assert all(name in card["license"] and card["commercial_use"] is commercial for card in [*cards, one])
    assert (one["license_url"] is not None) == (commercial is False)


def test_a_model_is_found_by_every_name_that_speaks():
    with serving(make_services(Speaker(), models=ModelSelector(rollout(v1=3, v2=1), aliases={"Kokoro": V2}))) as live:
        for name in ("TTS-1", "tts-1-hd", "gpt-4o-mini-tts", "ChatTTS", V2.upper(), "kokoro"):
            assert requests.get(f"{live.url}/v1/models/{name}", timeout=60).json()["id"] == name
            assert live.speak(model=name).status_code == 200
        refused = requests.get(f"{live.url}/v1/models/nobody", timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_models_are_listed_with_their_state():
    with serving(make_services(Speaker(), models=ModelSelector(rollout(v1=3, v2=1)))) as live:
        cards = {card["id"]: card for card in requests.get(f"{live.url}/v1/models", timeout=60).json()["data"]}
        assert cards["chattts"]["versions"] == {V1: 0.75, V2: 0.25, V3: 0.0}
        assert cards[V2]["share"] == 0.25
        assert cards[V2]["state"] == "in_service"
        assert requests.get(f"{live.url}/v1/models/{V2}", timeout=60).json() == cards[V2]
        pinned = live.speak(model=V2)
        assert pinned.headers["X-Model-Version"] == V2
        assert live.services.speech.stream.__self__.requests[-1].model == V2
        assert live.speak(model="chattts@v9").json()["error"]["code"] == "model_not_found"
