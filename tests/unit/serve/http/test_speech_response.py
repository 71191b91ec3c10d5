"""Speech response: failures, time limits and clients that leave."""

import base64
import concurrent.futures
import hashlib
import json
import re
import socket
import time

import pytest
import requests

from pipeline.errors import (
    AtCapacity,
    AudioFault,
    DeadlineExceeded,
    EngineDead,
    EngineFault,
    InvalidRequest,
    NonFiniteOutput,
    NoSpeakableText,
    ReaderStalled,
    TextTooLong,
)
from serve.config.app_config import LimitsConfig
from serve.http.ignored_fields import ignored_header
from tests.support.fakes import CHUNK, Speaker, close_to, make_services, pcm_of
from tests.support.live_server import CANARY, POST, error_of, read_all, serving
from tests.support.waiting import wait_until


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (InvalidRequest("no"), 400, "invalid_request", False),
        (NoSpeakableText("nothing to say", param="input"), 400, "no_speakable_text", False),
        (TextTooLong("too long", param="input"), 400, "input_too_long", False),
        (AtCapacity("full", retry_after_s=2.1), 429, "overloaded", True),
        (DeadlineExceeded("late"), 504, "timeout", True),
        (ReaderStalled("asleep"), 504, "reader_stalled", False),
        (EngineFault("broken"), 500, "engine_error", True),
        (AudioFault("encoder"), 500, "audio_error", True),
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


def test_no_first_audio_in_time_is_a_504():
    speaker = Speaker(first_pause_s=3600)
    with serving(make_services(speaker, LimitsConfig(first_audio_timeout_s=0.2))) as live:
        assert live.speak().status_code == 504
        assert live.speak(deadline_ms=50, stream=False).status_code == 504
        assert (speaker.closed, speaker.produced) == (2, 0), "nobody waited for it"


@pytest.mark.slow
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
        with socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
            client.sendall(f"{POST}Content-Length: 100\r\n\r\n{{".encode())
            assert b" 408 " in client.recv(4096)
        wait_until(lambda: services.speech.admission.in_flight == 0)


@pytest.mark.slow
@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("container", ["pcm", "mp3"])
def test_a_client_that_leaves_closes_the_stream(has_begun, container):
    speaker = Speaker(chunks=None, pause_s=0.02, first_pause_s=0 if has_begun else 3600)
    services = make_services(speaker)
    with serving(services) as live:
        with live.connect(b'{"input": "Hi.", "response_format": "%s"}' % container.encode()) as client:
            if has_begun:
                client.recv(4096)
            wait_until(lambda: speaker.opened == 1)
            assert services.speech.admission.in_flight == 1
        wait_until(lambda: speaker.closed == 1)  # from here on it can produce nothing
        wait_until(lambda: services.speech.admission.in_flight == 0)


@pytest.mark.slow
def test_a_client_that_reads_nothing_stops_generation_and_is_cut():
    speaker = Speaker(chunks=None, chunk_samples=240_000)
    services = make_services(speaker, LimitsConfig(stall_timeout_s=0.5))
    with serving(services) as live:
        client = live.connect(b'{"input": "Hi.", "response_format": "pcm"}')
        wait_until(lambda: speaker.closed == 1)
        assert speaker.produced < 40  # 20 MB: what the kernel's buffers take
        assert not read_all(client).endswith(b"0\r\n\r\n")


def test_a_full_replica_refuses_at_once(capsys):
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


def test_sixteen_clients_at_once_receive_only_their_own_audio(live):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda seed: (seed, live.speak(seed=seed).content), range(16)))
    for seed, content in replies:
        assert close_to(content, pcm_of(seed))


# Speech writers: headers, chunks, whole replies and events.


def test_ignored_names_fit_into_a_header():
    assert ignored_header(("a", "b\r\nX: 1", "c" * 65)) == "a, +2"
    assert ignored_header(tuple(f"f{index}" for index in range(30))).endswith("f19, +10")


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
    assert reply.headers["X-Ignored-Fields"] == "colour, user, +1"
    assert re.fullmatch(r"audio;dur=[\d.]+, encode;dur=[\d.]+, total;dur=[\d.]+", reply.headers["Server-Timing"])
    assert reply.headers["Content-Type"] == "audio/pcm; rate=24000; channels=1"


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


def test_mp3_is_the_default_format(live):
    reply = requests.post(f"{live.url}/v1/audio/speech", json={"input": "Hi."}, timeout=60)
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


def test_a_failure_inside_events_is_an_event():
    with serving(make_services(Speaker(fails_at=2, error=EngineDead("dead")))) as live:
        reply = live.speak(stream_format="sse")
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * 2 + ["speech.audio.error"]
    assert events[-1]["error"]["code"] == "engine_dead"
    assert "event: speech.audio.error\n" in reply.text
