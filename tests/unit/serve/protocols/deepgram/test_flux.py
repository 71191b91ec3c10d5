"""Version 2 of Deepgram's protocol on the wire: turns, interruptions, a speed that changes, the end of a session."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from pipeline.errors import NoSpeakableText
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import CANARY, Live, serving

SECOND = 48_000  # bytes of a Speaker's audio of one part


class Client:
    """A client of the socket, and the ids of its turns."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def say(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": kind, **fields}))

    def hear(self) -> bytes | dict[str, Any]:
        frame = self.connection.recv(timeout=30)
        return frame if isinstance(frame, bytes) else json.loads(frame)

    def until(self, kind: str) -> tuple[int, dict[str, Any], list[str]]:
        """Returns how much audio came before a message of this kind, the message, and the kinds before it."""
        audio, kinds = 0, []
        while isinstance(heard := self.hear(), bytes) or heard["type"] != kind:
            if isinstance(heard, bytes):
                audio += len(heard)
            else:
                kinds.append(heard["type"])
        return audio, heard, kinds

    def turn(self, *texts: str) -> tuple[int, dict[str, Any]]:
        """Speaks a turn to its end; returns its audio and its metadata."""
        for text in texts:
            self.say("Speak", text=text)
        self.say("Flush")
        audio, metadata, kinds = self.until("SpeechMetadata")
        assert kinds == ["SpeechStarted"]
        assert self.hear() == {"type": "Flushed", "speech_id": metadata["speech_id"]}
        return audio, metadata


@contextmanager
def talking(live: Live, query: str = "model=alloy&encoding=linear16&sample_rate=24000&seed=7") -> Iterator[Client]:
    with connect(f"{live.url.replace('http', 'ws')}/v2/speak?{query}") as connection:
        client = Client(connection)
        assert client.hear()["type"] == "Connected"  # type: ignore[index]
        yield client


def test_turns_end_with_their_metadata_and_the_session_with_its_sum(live: Live):
    with talking(live) as client:
        audio, first = client.turn("Hello ", "there. ")
        assert audio == SECOND
        expected = {"audio_duration_ms": 1000, "input_character_count": 13, "billable_character_count": 13}
        assert expected.items() <= first.items()
        audio, second = client.turn("Again.")
        assert (audio, second["input_character_count"]) == (SECOND, 6)
        assert first["speech_id"] != second["speech_id"]
        client.say("Speak", text="The last one is drained.")
        client.say("Close")
        audio, total, kinds = client.until("SessionMetadata")
        assert (audio, kinds) == (SECOND, ["SpeechStarted", "SpeechMetadata", "Flushed"])
        assert total["total_audio_duration_ms"] == 3000
        assert total["total_input_character_count"] == total["total_billable_character_count"] == 13 + 6 + 24
        with suppress(ConnectionClosed):
            client.hear()
        assert client.connection.close_code == 1000


def test_turns_wait_for_each_other(live: Live):
    with talking(live) as client:
        for text in ("One.", "Two.", "Three."):
            client.say("Speak", text=text)
            client.say("Flush")
        ids = [client.until("SpeechMetadata")[1]["speech_id"] for _ in range(3)]
    assert len(set(ids)) == 3
    assert [request.text for request in live.services.speech.stream.__self__.requests[-3:]] == ["One.", "Two.", "Three."]


def test_an_interruption_splits_the_text_where_its_audio_was_played():
    with serving(make_services(Speaker(chunks=None, pause_s=0.01))) as live, talking(live) as client:
        text = "One two three four five six seven eight nine ten eleven twelve."
        client.say("Speak", text=text)
        client.say("Flush")
        while not isinstance(client.hear(), bytes):
            pass
        client.say("Interrupt", playback_offset={"type": "time_ms", "value": 1000})
        _, message, _ = client.until("SpeechInterrupted")
        assert message["text_spoken"] + message["text_remaining"] == text
        assert message["audio_played_ms"] <= 1000
        assert message["metadata"]["input_character_count"] == len(text)
        client.say("Interrupt")
        assert client.until("Warning")[1]["code"] == "NO_ACTIVE_SPEECH"
        client.say("Speak", text="More.")
        client.say("Interrupt", playback_offset={"type": "time_ms", "value": 900})
        assert client.until("Warning")[1]["code"] == "INVALID_INTERRUPT_OFFSET"
        client.say("Interrupt")
        assert "text_spoken" not in client.until("SpeechInterrupted")[1]


def test_a_speed_applies_to_the_turns_that_follow(live: Live):
    with talking(live) as client:
        client.turn("One.")
        client.say("Configure", speed=1.25)
        assert client.until("ConfigureSuccess")[1]["applied"] == {"speed": 1.25}
        client.turn("Two.")
        client.say("Configure", speed=9)
        assert client.until("ConfigureFailure")[1]["code"] == "SPEED_OUT_OF_RANGE"
        client.turn("Three.")
    assert [request.speed for request in live.services.speech.stream.__self__.requests[-3:]] == [1.0, 1.25, 1.25]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"type": "Flush"}, "NO_ACTIVE_SPEECH"),
        ({"type": "Interrupt"}, "NO_ACTIVE_SPEECH"),
        ({"type": "Speak"}, "MISSING_FIELD"),
        ({"type": CANARY}, "OUT_OF_RANGE"),
    ],
)
def test_what_has_no_effect_is_a_warning_and_the_socket_goes_on(live: Live, frame: dict[str, Any], code: str):
    with talking(live) as client:
        client.say(**{"kind": frame["type"], **{name: value for name, value in frame.items() if name != "type"}})
        assert client.until("Warning")[1]["code"] == code
        assert client.turn("Hello.")[0] == SECOND


def test_a_turn_of_nothing_has_its_end():
    with serving(make_services(Speaker(fails_at=0, error=NoSpeakableText("nothing to say")))) as live, talking(live) as client:
        client.say("Speak", text="...")
        client.say("Flush")
        audio, metadata, kinds = client.until("SpeechMetadata")
        assert (audio, metadata["audio_duration_ms"], kinds) == (0, 0, ["Warning"])
        client.say("Speak", text="  ")
        client.say("Flush")
        assert client.until("SpeechMetadata")[1]["audio_duration_ms"] == 0
