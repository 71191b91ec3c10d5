"""Alignments with the demo voice, as the unmodified package and the agents' frameworks read them."""

import base64
import json
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest
import requests
from websockets.sync.client import connect

from tests.support.demo_voice import demo_speaker
from tests.support.fakes import make_services
from tests.support.live_server import Live, serving

elevenlabs = pytest.importorskip("elevenlabs", reason="needs the elevenlabs package")
pytestmark = pytest.mark.slow

TEXT = "I think that my  sister wanted the answer 😀. Call 555, please: it costs $5.20 today!"
SPOKEN = "I think that my sister wanted the answer. Call five five five, please, it costs five dollars and twenty cents today."


@pytest.fixture(scope="module")
def talking() -> Iterator[Live]:
    with demo_speaker() as speaker, serving(make_services(speaker)) as live:
        yield live


def client_of(live: Live) -> Any:
    return elevenlabs.ElevenLabs(base_url=live.url, api_key="none")


def check(alignment: Any, text: str, audio_s: float) -> None:
    starts, ends = alignment.character_start_times_seconds, alignment.character_end_times_seconds
    assert "".join(alignment.characters) == text
    assert len(starts) == len(ends) == len(text)
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    assert all(one <= two for one, two in pairwise(starts))
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False)), "no character begins before another ends"
    assert starts[0] >= 0
    assert ends[-1] == pytest.approx(audio_s, abs=1e-3)


def words_of(characters: list[str], starts: list[float]) -> dict[str, float]:
    text = "".join(characters)
    return {word: starts[text.index(word)] for word in ("sister", "answer", "please", "costs")}


def test_the_package_reads_whole_and_streamed_alignments(talking):
    client = client_of(talking)
    body = {"text": TEXT, "output_format": "pcm_24000", "seed": 1}
    whole = client.text_to_speech.convert_with_timestamps("alloy", **body)
    audio = base64.b64decode(whole.audio_base_64)
    assert audio == talking.speak(input=TEXT, voice="alloy", seed=1).content
    check(whole.alignment, TEXT, len(audio) / 48_000)
    check(whole.normalized_alignment, f"{SPOKEN} ", len(audio) / 48_000)
    ours = talking.speak(input=TEXT, voice="alloy", seed=1, stream=False, timestamps="word").json()["words"]
    begun = {word["text"]: word["start"] for word in ours}
    words = words_of(whole.alignment.characters, whole.alignment.character_start_times_seconds)
    assert all(words[word] == pytest.approx(begun[word], abs=1e-5) for word in words)

    characters: list[str] = []
    starts: list[float] = []
    spoken, received = "", b""
    for piece in client.text_to_speech.stream_with_timestamps("alloy", **body):
        if piece.alignment:
            assert piece.alignment.character_start_times_seconds[-1] >= len(received) / 48_000 - 0.5
            characters += piece.alignment.characters
            starts += piece.alignment.character_start_times_seconds
        spoken += "".join(piece.normalized_alignment.characters) if piece.normalized_alignment else ""
        received += base64.b64decode(piece.audio_base_64)
    assert received == audio
    assert characters == list(TEXT)
    assert starts == whole.alignment.character_start_times_seconds
    assert spoken == "".join(whole.normalized_alignment.characters)


def test_lines_are_short(talking):
    url = f"{talking.url}/v1/text-to-speech/alloy/stream/with-timestamps?output_format=pcm_48000"
    reply = requests.post(url, json={"text": TEXT, "seed": 1}, timeout=60)
    lines = reply.content.split(b"\n")
    assert lines[-1] == b""
    assert all(len(json.loads(line)["audio_base64"]) <= 96 * 1024 for line in lines[:-1])
    assert max(map(len, lines)) < 128 * 1024


def heard_on(live: Live, query: str, texts: list[str]) -> list[dict[str, Any]]:
    path = f"/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_24000&seed=1&{query}"
    with connect(live.url.replace("http", "ws") + path) as socket:
        for text in texts:
            socket.send(json.dumps({"text": text, "context_id": "c", "flush": True}))
        socket.send(json.dumps({"context_id": "c", "close_context": True}))
        messages = [json.loads(socket.recv(timeout=60))]
        while not messages[-1].get("isFinal"):
            messages.append(json.loads(socket.recv(timeout=60)))
    return messages[:-1]


@pytest.mark.parametrize("name", ["alignment", "normalizedAlignment"])
def test_sockets_count_from_the_context_or_add_up(talking, name):
    texts = ["That was great. ", "... ", "The green answer was mine. "]
    synced = heard_on(talking, "sync_alignment=true&auto_mode=true", texts)
    apart = heard_on(talking, "auto_mode=true", texts)

    def absolute(messages: list[dict[str, Any]], *, adds_up: bool) -> list[tuple[str, int, int]]:
        times, reached = [], 0
        for message in messages:
            if alignment := message[name]:
                starts, lengths = alignment["charStartTimesMs"], alignment["charDurationsMs"]
                assert len(alignment["chars"]) == len(starts) == len(lengths)
                assert starts[0] >= 0
                times += [
                    (character, start + reached, length)
                    for character, start, length in zip(alignment["chars"], starts, lengths, strict=True)
                ]
                reached += starts[-1] + lengths[-1] if adds_up else 0
        return times

    times = absolute(synced, adds_up=False)
    assert absolute(apart, adds_up=True) == times, "a reader that adds the messages up is at the same place"
    text = "".join(character for character, _, _ in times)
    if name == "alignment":
        assert text == "".join(texts)
    else:
        assert text == "That was great. The green answer was mine. "
    assert all(start + length <= following for (_, start, length), (_, following, _) in pairwise(times))
    audio_ms = [1000 * len(base64.b64decode(message["audio"])) / 48_000 for message in synced]
    total = list(accumulate(audio_ms))[-1]
    assert times[-1][1] + times[-1][2] == pytest.approx(total, abs=1)
    assert times[text.index("The")][1] > 500


def test_the_package_reads_the_turns_of_a_dialogue(talking):
    inputs = [
        elevenlabs.DialogueInput(text="That was great.", voice_id="alloy"),
        elevenlabs.DialogueInput(text="The green answer was mine.", voice_id="calm"),
        elevenlabs.DialogueInput(text="I think that my sister wanted it.", voice_id="alloy"),
    ]
    client = client_of(talking)
    body = {"inputs": inputs, "output_format": "pcm_24000", "seed": 1}
    whole = client.text_to_dialogue.convert_with_timestamps(**body)
    audio = base64.b64decode(whole.audio_base_64)
    assert audio == b"".join(client.text_to_dialogue.convert(**body))
    text = "".join(whole.alignment.characters)
    check(whole.alignment, "".join(turn.text for turn in inputs), len(audio) / 48_000)
    turns = whole.voice_segments
    assert [turn.voice_id for turn in turns] == ["alloy", "calm", "alloy"]
    assert [turn.dialogue_input_index for turn in turns] == [0, 1, 2]
    assert [text[turn.character_start_index : turn.character_end_index] for turn in turns] == [turn.text for turn in inputs]
    assert turns[0].start_time_seconds == 0
    assert all(one.end_time_seconds == two.start_time_seconds for one, two in pairwise(turns))
    assert turns[-1].end_time_seconds == pytest.approx(len(audio) / 48_000, abs=1e-5)
    begun = whole.alignment.character_start_times_seconds[turns[1].character_start_index]
    assert begun == pytest.approx(turns[1].start_time_seconds, abs=1e-5)
    pieces = list(client.text_to_dialogue.stream_with_timestamps(**body))
    assert b"".join(base64.b64decode(piece.audio_base_64) for piece in pieces) == audio
    assert [turn for piece in pieces for turn in piece.voice_segments] == turns
