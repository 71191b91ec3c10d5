"""Times over HTTP and over a conversation, with the demo voice: before their audio, counted in its samples."""

import base64
import hashlib
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.support.demo_voice import demo_speaker
from tests.support.fakes import make_services
from tests.support.live_server import Live, error_of, serving

pytestmark = pytest.mark.slow

TEXT = "I think that my sister wanted the answer. Call 555 & see, please: it costs $5.20 today."
SSML = '<speak>That was <mark name="here"/>great.<break time="200ms"/>The green answer.</speak>'

DIALOGUE = (
    '<speak><voice name="calm">That was great. It was</voice><break time="100ms"/>my sister said.'
    '<voice name="calm">The green answer.</voice></speak>'
)


@pytest.fixture(scope="module")
def talking() -> Iterator[Live]:
    with demo_speaker() as speaker, serving(make_services(speaker)) as live:
        yield live


def events_of(live: Live, **fields: Any) -> list[dict[str, Any]]:
    reply = live.speak(**{"input": TEXT, "seed": 1, "stream_format": "sse", **fields})
    assert reply.status_code == 200, reply.text
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data: ")]


def whole(live: Live, **fields: Any) -> dict[str, Any]:
    reply = live.speak(**{"input": TEXT, "seed": 1, "stream": False, **fields})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


@pytest.mark.parametrize("rate", [24_000, 8_000])
@pytest.mark.parametrize("unit", ["word", "char"])
def test_streamed_times_precede_their_audio_and_are_those_of_the_whole(talking, rate, unit):
    events = events_of(talking, timestamps=unit, sample_rate=rate, speed=1.2)
    items: dict[str, list[dict[str, Any]]] = {}
    samples = 0
    for event in events:
        if event["type"] == "speech.audio.delta":
            samples += len(base64.b64decode(event["audio"])) // 2
        elif event["type"] == "speech.audio.timestamps":
            for kind in event.keys() - {"type"}:
                assert all(item["end"] * rate >= samples - 1 for item in event[kind])
                items.setdefault(kind, []).extend(event[kind])
            assert all(item["start"] * rate >= samples - 1 for item in event.get(f"{unit}s", ()))
    body = whole(talking, timestamps=unit, sample_rate=rate, speed=1.2)
    assert items["segments"] == body["segments"]
    assert items[f"{unit}s"] == body[f"{unit}s"]
    assert items["segments"][-1]["end"] * rate == pytest.approx(samples, abs=0.01)
    assert body["duration_ms"] == round(1000 * samples / rate)
    for item in items[f"{unit}s"]:
        assert TEXT[slice(*item["source"])] == item["text"]
    assert all(item["end"] <= two["start"] for item, two in pairwise(items[f"{unit}s"]))
    assert events[-1]["coverage"] == body["coverage"]
    if unit == "word":
        assert body["coverage"]["words"] == len(body["words"])


def test_the_json_has_the_bytes_of_the_plain_reply(talking):
    body = whole(talking, timestamps="segment", subtitles="srt")
    plain = talking.speak(input=TEXT, seed=1, stream=False)
    assert base64.b64decode(body["audio"]) == plain.content
    assert body["sha256"] == hashlib.sha256(plain.content).hexdigest()
    assert "X-Coverage" not in plain.headers
    assert "words" not in body
    assert [segment["quality"] for segment in body["segments"]] == ["exact"] * len(body["segments"])


def test_headers_tell_the_coverage_of_a_whole_reply(talking):
    reply = talking.speak(input=TEXT, seed=1, stream=False, timestamps="word")
    coverage = reply.json()["coverage"]
    counts = "words={words}, swallowed={swallowed}, repeated={repeated}".format(**coverage)
    assert reply.headers["X-Coverage"] == f"{coverage['share']:.4f}; {counts}"


def test_marks_and_breaks(talking):
    body = whole(talking, input=SSML, input_type="ssml", timestamps="segment")
    (pause,), (mark,) = body["breaks"], body["marks"]
    assert round(pause["end"] - pause["start"], 6) == 0.2
    assert (body["segments"][0]["end"], body["segments"][1]["start"]) == (pause["start"], pause["end"])
    assert mark["name"] == "here"
    words = whole(talking, input=SSML, input_type="ssml", timestamps="word")["words"]
    assert mark["start"] == next(word["start"] for word in words if word["text"] == "great")


@pytest.mark.parametrize("rate", [24_000, 22_050])
def test_turns_of_a_dialogue_are_exact(talking, rate):
    fields = {"input": DIALOGUE, "input_type": "ssml", "timestamps": "segment", "sample_rate": rate, "speed": 1.1}
    body = whole(talking, **fields)
    turns, segments = body["turns"], body["segments"]
    assert [(turn["voice"], turn["text"], turn["quality"]) for turn in turns] == [
        ("calm", "That was great. It was", "exact"),
        ("default", "my sister said.", "exact"),
        ("calm", "The green answer.", "exact"),
    ]
    edges = [round(turn[edge] * rate) for turn in turns for edge in ("start", "end")]
    (pause,) = body["breaks"]
    samples = len(base64.b64decode(body["audio"])) // 2
    assert (edges[0], edges[-1], edges[3]) == (0, samples, edges[4])
    assert edges[1:3] == [round(pause["start"] * rate), round(pause["end"] * rate)]
    assert all(turn["start"] in [segment["start"] for segment in segments] for turn in turns)
    assert events_of(talking, **fields)[-1]["turns"] == turns
    assert "turns" not in whole(talking, timestamps="segment")
    shown = whole(talking, **fields | {"subtitles": "vtt"})["subtitles"]
    assert [line for line in shown.splitlines() if line and "-->" not in line][1:] == [
        "<v calm>That was great.",
        "<v calm>It was",
        "my sister said.",
        "<v calm>The green answer.",
    ]


@pytest.mark.parametrize(("kind", "point"), [("srt", ","), ("vtt", ".")])
def test_subtitles_hold_the_whole_text_in_short_lines(talking, kind, point):
    shown = whole(talking, subtitles=kind)["subtitles"]
    assert events_of(talking, subtitles=kind)[-1]["subtitles"] == shown
    assert shown.startswith("WEBVTT\n\n" if kind == "vtt" else "1\n00:00:00")
    lines = [line for line in shown.split("\n") if "-->" not in line and not line.isdigit() and line not in ("", "WEBVTT")]
    assert " ".join(lines) == (TEXT.replace("&", "&amp;") if kind == "vtt" else TEXT)
    assert all(len(line) <= 46 for line in lines)
    clocks = [part for line in shown.split("\n") if "-->" in line for part in line.split(" --> ")]
    assert clocks == sorted(clocks)
    assert all(clock[8] == point for clock in clocks)


def test_retries_without_heads_that_follow_the_text_are_named(talking):
    """This service does not know what its checkpoint was taught, as with ChatTTS's own."""
    plain = talking.speak(input="That was a great answer.", seed=1)
    again = talking.speak(input="That was a great answer.", seed=1, retries=3)
    assert again.content == plain.content
    assert again.headers["X-Ignored-Fields"] == "retries"


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"timestamps": "word"}, "timestamps", "sse"),
        ({"subtitles": "srt"}, "subtitles", "stream=false"),
        ({"timestamps": "sentence", "stream": False}, "timestamps", "segment"),
        ({"subtitles": "ass", "stream": False}, "subtitles", "srt"),
        ({"retries": 9}, "retries", "3"),
    ],
)
def test_refusals_say_what_to_do(talking, fields, param, word):
    reply = talking.speak(**fields)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == param
    assert word in error_of(reply)["message"]


def test_a_conversation_counts_times_from_the_start_of_its_context(talking):
    sentences = ["That was great. ", "The green answer was mine. "]
    with connect(talking.url.replace("http", "ws") + "/v1/audio/conversation") as socket:
        speech = {"voice": "alloy", "response_format": "pcm", "seed": 1, "timestamps": "word"}
        socket.send(json.dumps({"type": "open", "speech": speech}))
        for sentence in sentences:
            socket.send(json.dumps({"type": "text", "text": sentence}))
            socket.send(json.dumps({"type": "flush"}))
        socket.send(json.dumps({"type": "close"}))
        events = [json.loads(socket.recv(timeout=60))]
        while events[-1]["type"] != "closed":
            events.append(json.loads(socket.recv(timeout=60)))
    words, samples = [], 0
    for message in events:
        if message["type"] == "audio":
            samples += len(base64.b64decode(message["audio"])) // 2
        if message["type"] == "times":
            assert all(word["start"] * 24_000 >= samples - 1 for word in message.get("words", ()))
            words += message.get("words", [])
    text = "".join(sentences)
    assert [text[slice(*word["source"])] for word in words] == [word["text"] for word in words]
    assert [word["text"] for word in words] == text.replace(".", "").split()
    assert all(item["end"] <= two["start"] for item, two in pairwise(words))
    alone = whole(talking, input=sentences[0], timestamps="word", voice="alloy")
    assert words[:3] == alone["words"]
    assert words[3]["start"] == pytest.approx(alone["segments"][-1]["end"], abs=1e-5)
    assert all("coverage" in message for message in events if message["type"] == "finished")


def test_subtitles_have_no_place_in_a_conversation(talking):
    with connect(talking.url.replace("http", "ws") + "/v1/audio/conversation") as socket:
        socket.send(json.dumps({"type": "open", "speech": {"subtitles": "srt"}}))
        refused = json.loads(socket.recv(timeout=60))
    assert (refused["type"], refused["error"]["param"]) == ("refused", "subtitles")
