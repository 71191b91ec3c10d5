"""Speech writers: headers, chunks, whole replies and events."""

import base64
import hashlib
import json
import re

import pytest
import requests

from pipeline.errors import (
    EngineDead,
)
from serve.http.ignored_fields import ignored_header
from tests.support.fakes import Speaker, close_to, make_services, pcm_of
from tests.support.live_server import serving


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
