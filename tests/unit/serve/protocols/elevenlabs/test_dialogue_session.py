"""ElevenLabs' dialogue socket as its clients use it: voices change within a context, and every error ends the socket."""

import base64
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests
from websockets.sync.client import connect

from pipeline.errors import NoSpeakableText
from pipeline.store.store import Store
from serve.access.authentication import Authenticator
from serve.config.app_config import ConversationsConfig, LimitsConfig
from tests.support.demo_voice import demo_speaker
from tests.support.elevenlabs_client import Client, audio_of
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import CANARY, Live, serving

PART = 5 * 9600  # bytes of what the server speaks for every text


@contextmanager
def talking(live: Live, query: str = "output_format=pcm_24000&seed=7") -> Iterator[Client]:
    with connect(f"{live.url.replace('http', 'ws')}/v1/text-to-dialogue/multi-stream-input?{query}") as connection:
        yield Client(connection)


def line(text: str, voice: str = "alloy", **fields: Any) -> dict[str, Any]:
    return {"text": text, "voice_id": voice, **fields}


def dialogue(live: Live, **turn: str) -> bytes:
    url = f"{live.url}/v1/text-to-dialogue?output_format=pcm_24000"
    reply = requests.post(url, json={"inputs": [turn], "seed": 7}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.content


def said_in(live: Live, count: int) -> list[tuple[str, str]]:
    return [(request.voice, request.text) for request in live.services.speech.stream.__self__.requests[-count:]]


def test_the_messages_of_a_dialogue_field_by_field(live):
    with talking(live, "output_format=pcm_24000&seed=7&sync_alignment=true&model_id=eleven_v3") as client:
        client.say(context_id="c", voices=["alloy", "calm"], voice_settings={"stability": 0.5})
        client.say(context_id="c", inputs=[line("Is it? ", new_turn=True), line("It is. ", "calm")])
        client.say(context_id="c", keep_alive=True)
        client.say(context_id="c", inputs=[line("Good. ", "calm"), line("Yes. ", "calm", new_turn=True)], close_context=True)
        messages = client.until_final()
        client.say(close_socket=True)
        assert client.closed() == ([], 1000, "")
    assert said_in(live, 3) == [("default", "Is it? "), ("calm", "It is. Good. "), ("calm", "Yes. ")]
    assert messages[0].pop("ignored_fields") == ["voice_settings.stability"]
    spoken = [message for message in messages if "audio" in message]
    assert all(set(message) <= {"audio", "alignment", "context_id", "ignored_fields"} for message in spoken)
    ends = [message for message in messages if "audio" not in message]
    assert ends == 3 * [{"is_final_audio_for_turn": True, "context_id": "c"}] + [{"is_final": True, "context_id": "c"}]
    assert len(audio_of(messages)) == 3 * PART
    assert audio_of(messages)[:PART] == dialogue(live, text="Is it?", voice_id="alloy")


def test_what_pipecat_sends(live):
    with talking(live, "model_id=eleven_v4_turbo&output_format=pcm_24000&sync_alignment=true&seed=7") as client:
        client.say(context_id="pipecat-keepalive", voices=["alloy"])
        for turn in ("one", "two"):
            client.say(context_id=turn, voices=["alloy"])
            client.say(context_id=turn, inputs=[line("So this is the first sentence. ", new_turn=True)])
            client.say(context_id="pipecat-keepalive", keep_alive=True)
            client.say(context_id=turn, inputs=[line("And here is the second. ", new_turn=False)])
            client.say(context_id=turn, flush=True)
            client.say(context_id=turn, close_context=True)
            assert len(audio_of(client.until_final())) == 2 * PART
        assert said_in(live, 2) == [("default", "So this is the first sentence. "), ("default", "And here is the second. ")]
        client.say(close_socket=True)
        assert client.closed() == ([], 1000, "")


def test_what_livekit_sends(live):
    query = "model_id=eleven_v3&output_format=pcm_24000&enable_logging=true&apply_text_normalization=auto&sync_alignment=true"
    with talking(live, query) as client:
        for name in ("a", "b"):
            client.say(context_id=name, voices=["alloy"])
            client.say(context_id=name, inputs=[line("Hello there. ")], flush=True)
            client.say(context_id=name, inputs=[line("")], flush=True)
            client.say(context_id=name, close_context=True)
        messages = list(itertools.chain.from_iterable(client.until_final() for _ in range(2)))
    for name in ("a", "b"):
        mine = [message for message in messages if message["context_id"] == name]
        assert (len(audio_of(mine)), mine[-1]) == (PART, {"is_final": True, "context_id": name})
        assert "ignored_fields" not in mine[0]


def test_a_context_without_words_ends_with_silence_and_the_end_of_the_socket_speaks_the_rest():
    unspeakable = Speaker(fails_at=0, error=NoSpeakableText("nothing in the text can be spoken"))
    with serving(make_services(unspeakable)) as live, talking(live) as client:
        client.say(context_id="c", voices=["alloy"], inputs=[line("...")], close_context=True)
        assert audio_of(client.until_final()) == bytes(2 * 2400)
        client.say(context_id="d", voices=["alloy"])
        client.say(context_id="d", close_context=True)
        assert audio_of(client.until_final()) == bytes(2 * 2400)
    with serving(make_services(Speaker())) as live, talking(live) as client:
        client.say(context_id="silent", voices=["alloy"])
        client.say(context_id="c", voices=["alloy"], inputs=[line("The last words")], close_socket=True)
        client.say(context_id="c", inputs=[line("Too late.")])
        messages, code, _ = client.closed()
    assert [message["error"] for message in messages if "error" in message] == ["socket_closing"]
    assert (len(audio_of(messages)), messages[-1], code) == (PART, {"is_final": True, "context_id": "c"}, 1000)


C = {"context_id": "c"}
WRONG: list[tuple[list[Any], str, str | None]] = [
    (["["], "invalid_json", None),
    ([b"\x00"], "invalid_type", None),
    ([{}], "missing_field", "context_id"),
    ([{"flush": True}], "missing_field", "context_id"),
    ([C], "missing_field", "voices"),
    ([C | {"keep_alive": True}], "missing_field", "voices"),
    ([C | {"voices": []}], "out_of_range", "voices"),
    ([C | {"voices": 11 * ["alloy"]}], "out_of_range", "voices"),
    ([C | {"voices": ["alloy", CANARY]}], "voice_not_found", "voice"),
    ([C | {"voices": ["alloy"]}, C | {"voices": ["calm"]}], "settings_changed", None),
    ([C | {"voices": ["alloy"]}, C | {"voice_settings": {"stability": 1}}], "settings_changed", None),
    ([C | {"voices": ["alloy"]}, C | {"inputs": [line("x", CANARY)]}], "voice_not_registered", "inputs"),
    ([C | {"voices": ["alloy"], "inputs": [{"text": "x"}]}], "missing_field", "inputs"),
    ([C | {"voices": ["alloy"], "inputs": 51 * [line("x")]}], "out_of_range", "inputs"),
    ([C | {"voices": ["alloy"], "inputs": [line("x" * 16_385)]}], "system_busy", None),
    ([{"context_id": str(number), "voices": ["alloy"]} for number in range(9)], "system_busy", None),
    ([{"context_id": str(number), "voices": ["alloy"], "inputs": [line("x")]} for number in range(9)], "system_busy", None),
]


def test_every_error_names_its_code_and_closes_the_socket_with_it(live):
    for frames, word, param in WRONG:
        with talking(live) as client:
            for frame in frames:
                client.connection.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
            messages, code, reason = client.closed()
        (refused,) = (message for message in messages if "error" in message)
        refusal = (refused["error"], refused["param"], refused["code"], reason)
        assert refusal == (word, param, code, "overloaded" if word == "system_busy" else word), frames[-1]
        assert code == (1013 if word == "system_busy" else 1008)
        is_named = isinstance(frames[-1], dict) and "context_id" in frames[-1]
        assert refused.get("context_id") == (frames[-1]["context_id"] if is_named else None)
    for query, word in (("model_id=x", "model_not_found"), ("output_format=wav_24001", "unsupported_format")):
        with talking(live, query) as client:
            (refused,), code, reason = client.closed()
        assert (refused["error"], code, reason) == (word, 1008, word)


def test_a_later_message_that_repeats_the_first_one_changes_nothing(live):
    first = {"voices": ["alloy", "calm"], "voice_settings": {"stability": 0.5}}
    with talking(live) as client:
        client.say(**C, **first)
        client.say(**C, **first, inputs=[line("Hello.")])
        client.say(**C, voices=["alloy", "calm"], close_context=True)
        assert len(audio_of(client.until_final())) == 48_000
        client.say(**C, **first)
        client.say(**C, voices=["alloy"], inputs=[line("Hello.")])
        messages, code, _ = client.closed()
    assert ([message["error"] for message in messages if "error" in message], code) == (["settings_changed"], 1008)


def test_failures_and_want_of_room(store: Store):
    with serving(make_services(Speaker(fails_at=1))) as live, talking(live) as client:
        client.say(**C, voices=["alloy"], inputs=[line("Hello.")], flush=True)
        messages, code, _ = client.closed()
        assert (messages[-1]["error"], messages[-1]["context_id"], code) == ("internal_error", "c", 1011)
    services = make_services(Speaker(), LimitsConfig(max_in_flight=1), conversations=ConversationsConfig(max_sockets=1))
    with serving(services) as live, talking(live) as client:
        with talking(live) as second:
            second.say(**C, voices=["alloy"])
            messages, code, _ = second.closed()
            assert [(message["error"], message.get("context_id")) for message in messages] == [
                ("system_busy", None),
                ("system_busy", "c"),
            ]
            assert code == 1013
        with services.speech.admission.acquire():
            client.say(**C, voices=["alloy"], inputs=[line("Hello.")], flush=True)
            messages, code, _ = client.closed()
        assert ([(message["error"], message["context_id"]) for message in messages], code) == ([("system_busy", "c")], 1013)
    add(store)
    with guarded(Authenticator(ring_of(store))) as live, talking(live) as client:
        client.say(**C, voices=["alloy"])
        messages, code, _ = client.closed()
        assert ([(message["error"], message.get("context_id")) for message in messages], code) == (
            [("missing_api_key", "c")],
            1008,
        )


TURNS = [
    ("alloy", "I think that my sister wanted the answer."),
    ("calm", "The green one was mine, please. "),
    ("alloy", "Yes."),
]


@pytest.mark.slow
def test_each_turn_has_the_bytes_of_the_http_dialogue_and_both_readers_agree_on_its_times():
    with demo_speaker() as speaker, serving(make_services(speaker)) as live:
        messages = []
        for query in ("sync_alignment=true", "sync_alignment=false"):
            with talking(live, f"output_format=pcm_24000&seed=7&{query}") as client:
                client.say(**C, voices=["alloy", "calm"])
                client.say(**C, inputs=[line(text, voice) for voice, text in TURNS], close_context=True)
                messages.append(client.until_final())
        whole = [dialogue(live, text=text, voice_id=voice) for voice, text in TURNS]
    timed, untimed = messages
    assert audio_of(timed) == audio_of(untimed) == b"".join(whole)
    assert not any(message.get("alignment") for message in untimed)
    chars: list[str] = []
    apart = []  # how far the clocks of the two readers are apart, where characters begin
    by_audio = by_times = 0.0
    for message in (message for message in timed if "audio" in message):
        if alignment := message["alignment"]:
            starts, lengths = alignment["char_start_times_ms"], alignment["char_durations_ms"]
            assert len(alignment["chars"]) == len(starts) == len(lengths)
            assert all(start >= 0 and length >= 0 for start, length in zip(starts, lengths, strict=True))
            chars += alignment["chars"]
            if alignment["chars"][0].isalnum():
                apart.append(abs(by_audio - by_times))
            by_times += starts[-1] + lengths[-1]
        by_audio += len(base64.b64decode(message["audio"])) / 48
    assert "".join(chars) == "".join(text for _, text in TURNS)
    assert by_times == pytest.approx(by_audio, abs=len(chars))
    assert apart
    assert max(apart) < 2.0, "one adds up the audio, the other the times"
