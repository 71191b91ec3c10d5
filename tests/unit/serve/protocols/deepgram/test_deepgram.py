"""Deepgram's protocol for speech on the wire: replies, messages, an interruption, and what is refused."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import requests
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from pipeline.errors import NoSpeakableText
from pipeline.store.store import Store
from serve.access.authentication import Authenticator
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import CANARY, Live, serving

RAW = "encoding=linear16&sample_rate=24000"


class Client:
    """A client of the socket."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def say(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": kind, **fields}))

    def hear(self) -> bytes | dict[str, Any]:
        frame = self.connection.recv(timeout=30)
        if isinstance(frame, bytes):
            return frame
        assert CANARY not in frame
        message: dict[str, Any] = json.loads(frame)
        return message

    def until(self, kind: str) -> tuple[bytes, dict[str, Any]]:
        """Returns the audio before the next message, which is of this kind, and the message."""
        audio = b""
        while isinstance(message := self.hear(), bytes):
            audio += message
        assert message["type"] == kind, message
        return audio, message

    def closed(self) -> int | None:
        with suppress(ConnectionClosed):
            while True:
                self.connection.recv(timeout=30)
        return self.connection.close_code


@contextmanager
def talking(live: Live, query: str = f"{RAW}&seed=7", **options: Any) -> Iterator[Client]:
    with connect(f"{live.url.replace('http', 'ws')}/v1/speak?{query}", **options) as connection:
        yield Client(connection)


def post(live: Live, query: str = "", **options: Any) -> requests.Response:
    options = {"json": {"text": "Hello there."}} | options
    return requests.post(f"{live.url}/v1/speak?{query}", timeout=60, **options)


def refused(reply: requests.Response, status: int, code: str) -> None:
    assert (reply.status_code, reply.json()["err_code"]) == (status, code), reply.text
    assert reply.json().keys() == {"err_code", "err_msg", "request_id"}
    assert reply.json()["request_id"] == reply.headers["dg-request-id"] == reply.headers["X-Request-ID"]
    assert CANARY not in reply.text


def test_a_query_has_the_effect_of_the_services_own_fields(live: Live):
    for query, own in (
        ("", {"response_format": "wav"}),
        ("encoding=linear16", {"response_format": "wav"}),
        ("encoding=linear16&container=none", {}),
        ("encoding=linear16&container=none&sample_rate=16000", {"sample_rate": 16_000}),
        ("encoding=mulaw&container=none", {"response_format": "ulaw"}),
        ("encoding=alaw&container=none&sample_rate=8000", {"response_format": "alaw"}),
        ("encoding=mulaw", {"response_format": "ulaw_wav"}),
        ("encoding=alaw&container=wav&sample_rate=16000", {"response_format": "alaw_wav", "sample_rate": 16_000}),
        ("encoding=mp3&bit_rate=48000", {"response_format": "mp3", "bitrate": 48}),
        ("encoding=opus&container=ogg", {"response_format": "opus"}),
        ("encoding=flac&sample_rate=48000", {"response_format": "flac", "sample_rate": 48_000}),
        ("encoding=aac", {"response_format": "aac"}),
        ("encoding=linear16&container=none&speed=1.2&mip_opt_out=true", {"speed": 1.2}),
    ):
        theirs, ours = post(live, f"{query}&seed=7&model=alloy"), live.speak(seed=7, voice="alloy", **own)
        assert theirs.status_code == 200, theirs.text
        assert theirs.content == ours.content, query
        assert theirs.headers["Content-Type"] == ours.headers["Content-Type"]
        assert theirs.headers["dg-request-id"] == theirs.headers["X-Request-ID"]
        assert (theirs.headers["dg-model-name"], theirs.headers["dg-char-count"]) == ("default", "12")
        assert "X-Ignored-Fields" not in theirs.headers


def test_what_has_no_effect_is_named_or_refused(live: Live):
    body = {"text": "Hello there.", "voice": "x"}
    reply = post(live, "tag=a&temperature=1&callback_method=PUT", json=body)
    assert reply.headers["X-Ignored-Fields"] == "tag, query.temperature, callback_method, query.voice"
    refused(post(live, "tag=a&strict=1"), 400, "UNKNOWN_FIELD")
    with talking(live, f"{RAW}&tag=a&mip_opt_out=true") as client:
        assert client.until("Metadata")[1]["ignored_fields"] == ["tag"]


@pytest.mark.parametrize(
    ("query", "options", "status", "code"),
    [
        (f"model={CANARY}", {}, 400, "VOICE_NOT_FOUND"),
        (f"encoding={CANARY}", {}, 400, "OUT_OF_RANGE"),
        ("encoding=mp3&container=wav", {}, 400, "UNSUPPORTED_FORMAT"),
        ("encoding=mp3&container=ogg", {}, 400, "UNSUPPORTED_FORMAT"),
        ("sample_rate=12345", {}, 400, "UNSUPPORTED_FORMAT"),
        ("sample_rate=x", {}, 400, "OUT_OF_RANGE"),
        ("encoding=mp3&bit_rate=48001", {}, 400, "OUT_OF_RANGE"),
        ("speed=9", {}, 400, "OUT_OF_RANGE"),
        ("callback=http://localhost", {}, 400, "CALLBACK_NOT_SUPPORTED"),
        ("", {"json": {}}, 400, "MISSING_FIELD"),
        ("", {"json": {"text": ""}}, 400, "OUT_OF_RANGE"),
        ("", {"json": {"text": 5}}, 400, "INVALID_TYPE"),
        ("", {"json": {"text": CANARY * 5000}}, 400, "INPUT_TOO_LONG"),
        ("", {"json": None, "data": b"{", "headers": {"Content-Type": "application/json"}}, 400, "INVALID_JSON"),
    ],
)
def test_refused_requests(live: Live, query: str, options: dict[str, Any], status: int, code: str):
    refused(post(live, query, **options), status, code)


def test_the_messages_of_a_socket_field_by_field(live: Live):
    with talking(live, f"model=alloy&{RAW}&seed=7") as client:
        _, metadata = client.until("Metadata")
        assert metadata.keys() == {"type", "request_id", "model_name", "model_version", "model_uuid"}
        assert metadata["model_name"] == "default"
        for number in range(2):
            client.say("Speak", text="Hello ")
            client.say("Speak", text="there.")
            client.say("Flush")
            audio, flushed = client.until("Flushed")
            assert audio == live.speak(seed=7).content
            assert flushed == {"type": "Flushed", "sequence_id": number}
        client.say("Flush")
        assert client.until("Flushed") == (b"", {"type": "Flushed", "sequence_id": 2})
        client.say("Clear")
        assert client.until("Cleared") == (b"", {"type": "Cleared", "sequence_id": 3})
        client.say("Close")
        assert client.closed() == 1000


def test_sentences_are_spoken_before_the_flush_and_each_flush_is_confirmed_behind_its_audio(live: Live):
    whole = len(live.speak(seed=7).content)
    with talking(live) as client:
        client.until("Metadata")
        client.say("Speak", text="So this is the first sentence. And he")
        first = client.hear()
        assert isinstance(first, bytes), "without a flush"
        client.say("Speak", text="re is the second one.")
        client.say("Flush")
        client.say("Speak", text="A third.")
        client.say("Flush")
        audio, _ = client.until("Flushed")
        assert len(first + audio) == 2 * whole
        assert len(client.until("Flushed")[0]) == whole


def test_an_interruption_frees_the_model_and_nothing_old_is_heard_behind_it():
    speaker = Speaker(chunks=None, pause_s=0.01)
    with serving(make_services(speaker)) as live, talking(live) as client:
        client.until("Metadata")
        for number in range(3):
            client.say("Speak", text="An endless sentence.")
            client.say("Flush")
            client.say("Speak", text="Never spoken.")
            client.say("Flush")
            assert isinstance(client.hear(), bytes)
            client.say("Clear")
            _, cleared = client.until("Cleared")
            assert cleared["sequence_id"] == number, "the flushes before it are never confirmed"
            assert speaker.closed == speaker.opened == number + 1
            assert live.services.speech.admission.in_flight == 0
        speaker.chunks = 5
        client.say("Speak", text="Hello there.")
        client.say("Flush")
        audio, flushed = client.until("Flushed")
        assert (audio, flushed["sequence_id"]) == (live.speak(seed=7).content, 3)


def test_a_close_ends_behind_what_was_flushed(live: Live):
    """As the example of Deepgram's package has it: it says all that it has to say, and listens then."""
    whole = live.speak(seed=7).content
    with talking(live) as client:
        client.until("Metadata")
        for text in ("Hello there.", "And again."):
            client.say("Speak", text=text)
            client.say("Flush")
        client.say("Speak", text="Never flushed.")
        client.say("Close")
        messages: list[bytes | dict[str, Any]] = []
        with suppress(ConnectionClosed):
            while True:
                messages.append(client.hear())
        assert [message["type"] for message in messages if not isinstance(message, bytes)] == ["Flushed", "Flushed"]
        assert sum(len(message) for message in messages if isinstance(message, bytes)) == 2 * len(whole)
        assert client.connection.close_code == 1000


@pytest.mark.parametrize("last", ["Close", "Clear"])
def test_a_second_close_or_an_interruption_behind_it_ends_at_once(last: str):
    speaker = Speaker(chunks=None, pause_s=0.01)
    with serving(make_services(speaker)) as live, talking(live) as client:
        client.until("Metadata")
        client.say("Speak", text="An endless sentence.")
        client.say("Flush")
        client.hear()
        client.say("Close")
        client.say("Flush")
        while isinstance(warning := client.hear(), bytes):
            pass
        assert warning["code"] == "SOCKET_CLOSING"
        client.say(last)
        assert client.closed() == 1000
        assert speaker.last_closed.wait(30)


def test_a_close_ends_at_once_where_nothing_was_flushed(live: Live):
    with talking(live) as client:
        client.until("Metadata")
        client.say("Speak", text="Hello there")
        client.say("Close")
        assert client.closed() == 1000


def test_a_message_that_is_wrong_is_a_warning_and_the_socket_stays(live: Live):
    with talking(live) as client:
        client.until("Metadata")
        for frame, code in (
            ("{", "INVALID_JSON"),
            ("[]", "INVALID_TYPE"),
            ("{}", "MISSING_FIELD"),
            (json.dumps({"type": CANARY}), "OUT_OF_RANGE"),
            (json.dumps({"type": "Speak"}), "MISSING_FIELD"),
            (json.dumps({"type": "Speak", "text": 5}), "INVALID_TYPE"),
            (json.dumps({"type": "Flush", "text": "x"}), "UNKNOWN_FIELD"),
            (json.dumps({"type": "Flush", CANARY: 1}), "UNKNOWN_FIELD"),
            (json.dumps({"type": "Speak", "text": "x" * 20_000}), "TOO_MANY_REQUESTS"),
            (b"audio", "INVALID_TYPE"),
        ):
            client.connection.send(frame)
            _, warning = client.until("Warning")
            assert (warning["code"], warning.keys()) == (code, {"type", "description", "code", "request_id"}), frame
        client.say("Speak", text="Hello there.")
        client.say("Flush")
        assert client.until("Flushed")[0] == live.speak(seed=7).content


def test_a_text_without_words_is_a_warning_and_its_flush_is_confirmed():
    speaker = Speaker(fails_at=0, error=NoSpeakableText("there is nothing to say"))
    with serving(make_services(speaker)) as live, talking(live) as client:
        client.until("Metadata")
        client.say("Speak", text="...")
        client.say("Flush")
        assert client.until("Warning")[1]["code"] == "NO_SPEAKABLE_TEXT"
        assert client.until("Flushed")[0] == b""


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (f"model={CANARY}", "VOICE_NOT_FOUND"),
        ("encoding=mp3", "UNSUPPORTED_FORMAT"),
        ("encoding=linear16&container=wav", "UNSUPPORTED_FORMAT"),
        ("encoding=linear16&sample_rate=11025", "UNSUPPORTED_FORMAT"),
        ("speed=9", "OUT_OF_RANGE"),
        ("tag=a&strict=1", "UNKNOWN_FIELD"),
        ("callback=x", "CALLBACK_NOT_SUPPORTED"),
    ],
)
def test_an_address_that_is_wrong_closes_the_socket_in_words(live: Live, query: str, name: str):
    with talking(live, query) as client:
        assert client.until("Error")[1]["code"] == name
        assert client.closed() == 1008


def test_a_key_in_a_header_or_a_subprotocol(store: Store):
    key, _ = add(store)
    with guarded(Authenticator(ring_of(store))) as live:
        for options in (
            {"additional_headers": {"Authorization": f"Token {key}"}},
            {"additional_headers": {"Authorization": f"token {key}"}},
            {"subprotocols": [Subprotocol("token"), Subprotocol(key)]},
        ):
            with talking(live, **options) as client:
                client.until("Metadata")
                assert client.connection.subprotocol == ("token" if "subprotocols" in options else None)
        for options in ({}, {"subprotocols": [Subprotocol("token"), Subprotocol("ck-wrong")]}):
            with pytest.raises(InvalidStatus) as refusal, talking(live, **options):
                pass
            reply = refusal.value.response
            assert (reply.status_code, json.loads(reply.body)["err_code"]) == (401, "INVALID_AUTH")
            assert reply.headers["dg-error"] == json.loads(reply.body)["err_msg"]


# Version 2 of Deepgram's protocol on the wire: turns, interruptions, a speed that changes, the end of a session.


SECOND = 48_000  # bytes of a Speaker's audio of one part


class FluxClient:
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
def talking_flux(live: Live, query: str = "model=alloy&encoding=linear16&sample_rate=24000&seed=7") -> Iterator[FluxClient]:
    with connect(f"{live.url.replace('http', 'ws')}/v2/speak?{query}") as connection:
        client = FluxClient(connection)
        assert client.hear()["type"] == "Connected"  # type: ignore[index]
        yield client


def test_turns_end_with_their_metadata_and_the_session_with_its_sum(live: Live):
    with talking_flux(live) as client:
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
    with talking_flux(live) as client:
        for text in ("One.", "Two.", "Three."):
            client.say("Speak", text=text)
            client.say("Flush")
        ids = [client.until("SpeechMetadata")[1]["speech_id"] for _ in range(3)]
    assert len(set(ids)) == 3
    assert [request.text for request in live.services.speech.stream.__self__.requests[-3:]] == ["One.", "Two.", "Three."]


def test_an_interruption_splits_the_text_where_its_audio_was_played():
    with serving(make_services(Speaker(chunks=None, pause_s=0.01))) as live, talking_flux(live) as client:
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
    with talking_flux(live) as client:
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
    with talking_flux(live) as client:
        client.say(**{"kind": frame["type"], **{name: value for name, value in frame.items() if name != "type"}})
        assert client.until("Warning")[1]["code"] == code
        assert client.turn("Hello.")[0] == SECOND


def test_a_turn_of_nothing_has_its_end():
    with (
        serving(make_services(Speaker(fails_at=0, error=NoSpeakableText("nothing to say")))) as live,
        talking_flux(live) as client,
    ):
        client.say("Speak", text="...")
        client.say("Flush")
        audio, metadata, kinds = client.until("SpeechMetadata")
        assert (audio, metadata["audio_duration_ms"], kinds) == (0, 0, ["Warning"])
        client.say("Speak", text="  ")
        client.say("Flush")
        assert client.until("SpeechMetadata")[1]["audio_duration_ms"] == 0
