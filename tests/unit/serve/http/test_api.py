"""The routes on a real socket, over fakes."""

import base64
import concurrent.futures
import hashlib
import json
import re
import socket
import time

import numpy as np
import pytest
import requests

from pipeline.errors import (
    AtCapacity,
    DeadlineExceeded,
    EngineDead,
    EngineFault,
    InvalidRequest,
    NonFiniteOutput,
    NoSpeakableText,
    ReaderStalled,
    TextTooLong,
)
from pipeline.types import AudioOptions, Denoise
from serve.config.app_config import LimitsConfig
from tests.support.fakes import CHUNK, Speaker, make_services, sine
from tests.support.live_server import POST, read_all, serving
from tests.support.waiting import wait_until

CANARY = "canary-7f3a"


@pytest.fixture(scope="module")
def live():
    with serving(make_services(Speaker())) as server:
        yield server


def error_of(reply: requests.Response) -> dict:
    """The envelope, checked."""
    assert reply.headers["Content-Type"] == "application/json"
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert error["request_id"] == reply.headers["X-Request-ID"]
    assert CANARY not in reply.text
    assert reply.json().keys() == {"error"}
    return error


def pcm_of(seed: int, chunks: int = 5) -> np.ndarray:
    return sine(seed, 0, chunks * CHUNK)


def close_to(data: bytes, samples: np.ndarray) -> bool:
    heard = np.frombuffer(data, "<i2").astype(np.float32) / 32767
    return len(heard) == len(samples) and bool(np.abs(heard - samples).max() < 1e-3)


# Good answers.


def test_streamed_and_buffered_pcm_are_the_same_bytes(live):
    streamed = live.speak(seed=7)
    buffered = live.speak(seed=7, stream=False)
    assert streamed.status_code == buffered.status_code == 200
    assert streamed.headers["Transfer-Encoding"] == "chunked"
    assert buffered.headers["Content-Length"] == str(len(buffered.content))
    assert buffered.headers["X-Audio-Duration-Ms"] == "1000"
    assert buffered.headers["X-Usage-Characters"] == "12"
    assert buffered.headers["X-Usage-Audio-Tokens"] == "46"
    digest = base64.b64encode(hashlib.sha256(buffered.content).digest()).decode()
    assert buffered.headers["Digest"] == f"SHA-256={digest}"
    assert streamed.content == buffered.content
    assert close_to(streamed.content, pcm_of(7))


def test_headers_say_what_was_done(live):
    reply = live.speak(voice="nova", seed=3, user="someone", colour="green", **{"bad name\u2603": 1})
    assert reply.headers["X-Voice-Id"] == "default"
    assert reply.headers["X-Audio-Seed"] == "3"
    assert reply.headers["X-AI-Generated"] == "true"
    assert reply.headers["X-Ignored-Fields"] == "user, colour, +1"
    assert re.fullmatch(r"audio;dur=[\d.]+, encode;dur=[\d.]+, total;dur=[\d.]+", reply.headers["Server-Timing"])
    assert reply.headers["Content-Type"] == "audio/pcm; rate=24000; channels=1"


def test_a_drawn_seed_repeats_the_audio(live):
    first = live.speak()
    seed = int(first.headers["X-Audio-Seed"])
    assert live.speak(seed=seed).content == first.content
    assert int(live.speak().headers["X-Audio-Seed"]) != seed


@pytest.mark.parametrize(
    ("given", "kept"), [("a-b_c.9", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("<x>", False)]
)
def test_request_ids_are_kept_only_when_harmless(live, given, kept):
    reply = requests.get(f"{live.url}/live", headers={"X-Request-ID": given}, timeout=5)
    assert (reply.headers["X-Request-ID"] == given) == kept
    assert len(reply.headers["X-Request-ID"]) >= 7


@pytest.mark.parametrize("container", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_content_types_are_exact(live, container):
    kinds = {"mp3": "audio/mpeg", "opus": "audio/ogg; codecs=opus", "aac": "audio/aac", "flac": "audio/flac",
             "wav": "audio/wav", "pcm": "audio/pcm; rate=24000; channels=1"}  # fmt: skip
    for stream in (True, False):
        reply = live.speak(response_format=container, stream=stream)
        assert reply.status_code == 200
        assert reply.headers["Content-Type"] == kinds[container]
        assert len(reply.content) > 100


@pytest.mark.parametrize(
    ("fields", "media_type"),
    [
        ({"response_format": "ulaw"}, "audio/basic"),
        ({"response_format": "alaw"}, "audio/x-alaw-basic"),
        ({"response_format": "pcm", "sample_rate": 16_000}, "audio/pcm; rate=16000; channels=1"),
        ({"response_format": "mp3", "sample_rate": 44_100, "bitrate": 128}, "audio/mpeg"),
    ],
)
def test_rates_and_telephone_formats_say_what_they_are(live, fields, media_type):
    reply = live.speak(**fields)
    assert (reply.status_code, reply.headers["Content-Type"]) == (200, media_type)
    raw = json.dumps({"input": "Hello there.", "output_format": "pcm_8000", "stream": False})
    named = live.post(raw.encode())
    assert named.headers["Content-Type"] == "audio/pcm; rate=8000; channels=1"


def test_audio_fields_reach_the_domain():
    speaker = Speaker()
    with serving(make_services(speaker)) as live:

        def options(**fields: object) -> AudioOptions:
            body = {"input": "x", **fields}
            assert requests.post(f"{live.url}/v1/audio/speech?strict=1", json=body, timeout=20).status_code == 200
            return speaker.requests[-1].audio

        assert options() == options(post=False) == options(post={}) == AudioOptions(), "nothing happens unasked"
        assert options(post=True) == AudioOptions(trim=True, fade_ms=5.0)
        full = {"trim": True, "denoise": "auto", "gain_db": -3.5, "loudness_lufs": -18, "fade_ms": 20}
        assert options(post=full, sample_rate=48_000) == AudioOptions(48_000, True, Denoise.AUTO, -3.5, -18, 20)
        assert options(output_format="ulaw_8000").sample_rate == options(response_format="alaw").sample_rate == 8_000


def test_mp3_is_the_default_format(live):
    reply = requests.post(f"{live.url}/v1/audio/speech", json={"input": "Hi."}, timeout=10)
    assert reply.headers["Content-Type"] == "audio/mpeg"


def test_events_carry_the_audio_and_end_with_done(live):
    reply = live.speak(seed=5, stream_format="sse")
    assert reply.headers["Content-Type"] == "text/event-stream"
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta")
    assert audio == live.speak(seed=5).content
    assert [event["seq"] for event in events[:-1]] == list(range(len(events) - 1))
    done = events[-1]
    assert done["type"] == "speech.audio.done"
    assert done["audio"] == {
        "duration_ms": 1000,
        "sample_rate": 24_000,
        "content_type": "audio/pcm; rate=24000; channels=1",
        "seed": 5,
        "sha256": hashlib.sha256(audio).hexdigest(),
    }
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]


def test_accept_chooses_events_too(live):
    reply = requests.post(
        f"{live.url}/v1/audio/speech", json={"input": "Hi."}, headers={"Accept": "text/event-stream"}, timeout=5
    )
    assert reply.headers["Content-Type"] == "text/event-stream"


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


def test_models_voices_and_the_front_page(live):
    listed = requests.get(f"{live.url}/v1/models", timeout=5).json()
    assert listed["object"] == "list"
    assert {"chattts", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"} <= {card["id"] for card in listed["data"]}
    assert requests.get(f"{live.url}/v1/models/tts-1", timeout=5).json()["object"] == "model"
    voices = requests.get(f"{live.url}/v1/audio/voices", timeout=5).json()["voices"]
    assert voices[0]["id"] == "default"
    assert "alloy" in voices[0]["aliases"]
    assert requests.get(f"{live.url}/v1/audio/voices?legacy=1", timeout=5).json() == {"voices": ["default", "calm"]}
    assert requests.get(live.url, timeout=5).json()["name"] == "chattts-serve"
    page = requests.get(live.url, headers={"Accept": "text/html,*/*"}, timeout=5)
    assert page.headers["Content-Type"].startswith("text/html")
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert requests.get(f"{live.url}/live", timeout=5).status_code == 200
    assert requests.get(f"{live.url}/ready", timeout=5).json() == {"status": "ready"}
    assert requests.get(f"{live.url}/health", timeout=5).json()["admission"]["capacity"] == 64


# Refusals before any work.


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"input": ""}, 400, "out_of_range", "input"),
        ({"input": None}, 400, "invalid_type", "input"),
        ({"input": 5}, 400, "invalid_type", "input"),
        ({"input": CANARY * 500}, 413, "input_too_long", "input"),
        ({"model": CANARY}, 404, "model_not_found", "model"),
        ({"voice": CANARY}, 400, "voice_not_found", "voice"),
        ({"voice": {"id": CANARY, "x": 1}}, 400, "invalid_type", "voice"),
        ({"voice": 7}, 400, "invalid_type", "voice"),
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
        ({"seed": -1}, 400, "out_of_range", "seed"),
        ({"seed": 2**32}, 400, "out_of_range", "seed"),
        ({"seed": 1.5}, 400, "invalid_type", "seed"),
        ({"temperature": 0}, 400, "out_of_range", "temperature"),
        ({"top_p": 1.01}, 400, "out_of_range", "top_p"),
        ({"top_k": 627}, 400, "out_of_range", "top_k"),
        ({"repetition_penalty": 2.1}, 400, "out_of_range", "repetition_penalty"),
        ({"refine": {CANARY: 1}}, 400, "out_of_range", "refine"),
        ({"refine": {"oral": 10}}, 400, "out_of_range", "refine"),
        ({"refine": "yes"}, 400, "out_of_range", "refine"),
        ({"language": CANARY}, 400, "out_of_range", "language"),
        ({"stream": 1}, 400, "invalid_type", "stream"),
        ({"stream_format": "ws"}, 400, "out_of_range", "stream_format"),
        ({"stream": False, "stream_format": "sse"}, 400, "conflicting_fields", "stream_format"),
        ({"deadline_ms": 49}, 400, "out_of_range", "deadline_ms"),
        ({"instructions": "x" * 1001}, 400, "out_of_range", "instructions"),
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
    assert reply.status_code == 413
    assert "4097" in error_of(reply)["message"]
    assert "4096" in error_of(reply)["message"]


def test_strict_refuses_what_it_would_ignore(live):
    reply = requests.post(f"{live.url}/v1/audio/speech?strict=1", json={"input": "Hi.", CANARY: 1}, timeout=5)
    assert (reply.status_code, error_of(reply)["code"]) == (400, "unknown_field")
    assert requests.post(f"{live.url}/v1/audio/speech?strict=1", json={"input": "Hi."}, timeout=5).status_code == 200


def test_large_bodies_are_refused_as_they_arrive(live):
    client = socket.create_connection(("127.0.0.1", live.port), timeout=60)
    client.sendall(f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode())
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for _ in range(17):  # 1 MiB and 64 KiB of a body that never ends
        client.sendall(piece)
    assert b" 413 " in client.recv(4096)
    client.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", f"/{CANARY}", 404, "not_found"),
        ("GET", "/v1/audio/speech", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", f"/v1/models/{CANARY}", 404, "not_found"),
    ],
)
def test_unknown_routes_and_methods_keep_the_envelope(live, method, path, status, code):
    reply = requests.request(method, f"{live.url}{path}", timeout=5)
    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    if status == 405:
        assert reply.headers["Allow"]


# Failures of the model.


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (InvalidRequest("no"), 400, "invalid_request", False),
        (NoSpeakableText("nothing to say", param="input"), 400, "no_speakable_text", False),
        (TextTooLong("too long", param="input"), 413, "input_too_long", False),
        (AtCapacity("full", retry_after_s=2.1), 429, "overloaded", True),
        (DeadlineExceeded("late"), 504, "timeout", True),
        (ReaderStalled("asleep"), 504, "reader_stalled", False),
        (EngineFault("broken"), 500, "engine_error", True),
        (NonFiniteOutput("nan"), 500, "generation_failed", False),
        (EngineDead("dead"), 503, "engine_dead", True),
        (RuntimeError(CANARY), 500, "internal_error", False),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_failures_before_the_first_audio_have_a_status(error, status, code, retry, stream):
    speaker = Speaker(fails_at=0, error=error)
    with serving(make_services(speaker)) as live:
        reply = live.speak(stream=stream)
    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    assert ("x-should-retry" not in reply.headers) == retry
    if status in (429, 503):
        assert int(reply.headers["Retry-After"]) >= (3 if status == 429 else 1)
    assert speaker.closed == 1


def test_a_failure_after_the_first_audio_cuts_the_body():
    speaker = Speaker(fails_at=2, error=NonFiniteOutput("nan"))
    with serving(make_services(speaker)) as live:
        received = read_all(live.connect(b'{"input": "Hi.", "response_format": "pcm"}'))
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            live.speak()
        whole = live.speak(stream=False)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b" 200 OK" in head
    assert len(body) > 2 * CHUNK
    assert not body.endswith(b"0\r\n\r\n")
    assert b"nan" not in body
    assert whole.status_code == 500
    assert speaker.closed == speaker.opened


def test_a_failure_inside_events_is_an_event():
    with serving(make_services(Speaker(fails_at=2, error=EngineDead("dead")))) as live:
        reply = live.speak(stream_format="sse")
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * 2 + ["speech.audio.error"]
    assert events[-1]["error"]["code"] == "engine_dead"
    assert "event: speech.audio.error\n" in reply.text


def test_no_first_audio_in_time_is_a_504():
    speaker = Speaker(first_pause_s=3600)
    with serving(make_services(speaker, LimitsConfig(first_audio_timeout_s=0.2))) as live:
        assert live.speak().status_code == 504
        assert live.speak(deadline_ms=50, stream=False).status_code == 504
        assert (speaker.closed, speaker.produced) == (2, 0), "nobody waited for it"


def test_a_long_pause_and_a_long_whole_cut_the_body():
    for limits in (LimitsConfig(chunk_timeout_s=0.2), LimitsConfig(total_timeout_s=0.3)):
        speaker = Speaker(pause_s=3600)
        with serving(make_services(speaker, limits)) as live:
            received = read_all(live.connect(b'{"input": "Hi.", "response_format": "pcm"}'))
            assert b" 200 OK" in received
            assert not received.endswith(b"0\r\n\r\n")
            assert speaker.closed == 1


def test_a_body_that_never_comes_is_let_go():
    services = make_services(Speaker(), LimitsConfig(body_timeout_s=0.2))
    with serving(services) as live:
        client = socket.create_connection(("127.0.0.1", live.port), timeout=5)
        client.sendall(f"{POST}Content-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in client.recv(4096)
        client.close()
        wait_until(lambda: services.speech.admission.in_flight == 0)


def test_not_ready_says_why():
    with serving(make_services(Speaker(), not_ready="no answer from AcousticModel")) as live:
        reply = requests.get(f"{live.url}/ready", timeout=5)
    assert reply.status_code == 503
    assert reply.json()["reason"] == "no answer from AcousticModel"
    assert reply.headers["Retry-After"] == "2"


# Clients that leave, sleep or crowd.


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("container", ["pcm", "mp3"])
def test_a_client_that_leaves_closes_the_stream(heard, container):
    speaker = Speaker(chunks=None, pause_s=0.02, first_pause_s=0 if heard else 3600)
    services = make_services(speaker)
    with serving(services) as live:
        client = live.connect(b'{"input": "Hi.", "response_format": "%s"}' % container.encode())
        if heard:
            client.recv(4096)
        wait_until(lambda: speaker.opened == 1)
        assert services.speech.admission.in_flight == 1
        client.close()
        wait_until(lambda: speaker.closed == 1)  # from here on it can produce nothing
        wait_until(lambda: services.speech.admission.in_flight == 0)


def test_a_reader_that_takes_nothing_holds_the_voice_and_is_cut():
    speaker = Speaker(chunks=None, chunk_samples=240_000)
    services = make_services(speaker, LimitsConfig(stall_timeout_s=0.5))
    with serving(services) as live:
        client = live.connect(b'{"input": "Hi.", "response_format": "pcm"}')
        wait_until(lambda: speaker.closed == 1)
        assert speaker.produced < 40  # 20 MB: what the kernel's buffers take
        assert not read_all(client).endswith(b"0\r\n\r\n")
        client.close()


def test_a_full_house_refuses_at_once(capsys):
    speaker = Speaker(chunks=None, pause_s=0.02)
    services = make_services(speaker, LimitsConfig(max_in_flight=2))
    with serving(services) as live:
        inside = [live.connect(b'{"input": "Hi.", "response_format": "pcm"}') for _ in range(2)]
        wait_until(lambda: services.speech.admission.in_flight == 2)
        times = []
        for _ in range(10):
            began = time.perf_counter()
            reply = live.speak(input="x" * 4000)
            times.append(time.perf_counter() - began)
            assert (reply.status_code, error_of(reply)["code"]) == (429, "overloaded")
            assert int(reply.headers["Retry-After"]) >= 1
        assert services.speech.admission.in_flight == 2, "they were refused while the house was full, not after it"
        assert speaker.opened == 2
        with capsys.disabled():
            print(f"\n  refused after {1000 * min(times):.1f} .. {1000 * max(times):.1f} ms")
        for client in inside:
            client.close()
        wait_until(lambda: services.speech.admission.in_flight == 0)
        speaker.chunks = 1
        assert live.speak().status_code == 200


def test_sixteen_clients_at_once_hear_only_themselves(live):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda seed: (seed, live.speak(seed=seed).content), range(16)))
    for seed, content in replies:
        assert close_to(content, pcm_of(seed))
