"""Riva's speech synthesis over gRPC: what its fields do, what is refused, and who leaves."""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.store.store import Store
from pipeline.types import Lane, PronunciationKind
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from serve.access.idempotency import seed_of
from serve.config.app_config import ConversationsConfig, LimitsConfig
from serve.protocols.riva import protocol
from serve.protocols.riva.calls import address_of
from tests.support.demo_voice import demo_library, demo_speaker
from tests.support.effort import examples
from tests.support.fakes import CHUNK, Speaker, make_services, shipped_library
from tests.support.foreign import RIVA, RIVA_SCENARIOS, python_of_clients
from tests.support.guarded import add, ring_of
from tests.support.live_server import CANARY, serving
from tests.support.recordings import SAID, spoken, written
from tests.support.riva_server import Caller, refusal, riva_serving
from tests.support.voice_routes import services_with
from tests.support.waiting import wait_until

TEXT = "Hello there."
SECOND = 2 * 5 * CHUNK
FORMATS = ((1, 24_000, "pcm"), (0, 16_000, "pcm"), (2, 24_000, "flac"), (3, 8000, "ulaw"), (20, 8000, "alaw"))


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    return Speaker()


@pytest.fixture(scope="module")
def caller(speaker: Speaker) -> Iterator[Caller]:
    with riva_serving(make_services(speaker)) as address:
        yield Caller(address)


def test_a_whole_text_has_the_bytes_of_http(caller: Caller, speaker: Speaker):
    with serving(make_services(speaker)) as live:
        for encoding, rate, container in FORMATS:
            fields = {"text": TEXT, "encoding": encoding, "sample_rate_hz": rate, "voice_name": "alloy"}
            spoken, trailing = caller.whole(**fields, custom_configuration={"seed": "7"}, id={"value": "mine"})
            own = live.speak(response_format=container, sample_rate=rate, voice="alloy", seed=7, stream=False)
            assert spoken.audio == own.content
            assert (spoken.id.value, spoken.meta.text) == ("mine", TEXT)
            assert "x-ignored-fields" not in trailing


def test_fields_have_the_effect_of_the_services_own(caller: Caller, speaker: Speaker):
    caller.whole(
        text=TEXT,
        language_code="en-US",
        voice_name="calm",
        custom_dictionary="there  zhong4 guo2,Hello  hullo",
        custom_configuration={"speed": "1.5", "priority": "bulk", "seed": "9"},
    )
    request = speaker.requests[-1]
    assert (request.text, request.voice, request.language, request.speed) == (TEXT, "calm", "en", 1.5)
    assert (request.scheduling.lane, request.sampling.seed) == (Lane.BULK, 9)
    kinds = {entry.word: entry.kind for entry in request.lexicon}
    assert kinds == {"there": PronunciationKind.PINYIN, "Hello": PronunciationKind.ALIAS}


def test_texts_of_a_stream_are_spoken_one_after_the_other_and_older_clients_send_none(caller: Caller, speaker: Speaker):
    fields = {"encoding": 1, "sample_rate_hz": 24_000}
    replies = list(caller.stream(*({"text": text, **fields} for text in ("One.", "Two.", "Three."))))
    assert len(b"".join(reply.audio for reply in replies)) == 3 * SECOND
    assert [request.text for request in speaker.requests[-3:]] == ["One.", "Two.", "Three."]
    assert len(b"".join(reply.audio for reply in caller.older(text=TEXT, **fields))) == SECOND


def test_the_voices_of_a_model_are_listed(caller: Caller):
    models = [(model.model_name, dict(model.parameters)) for model in caller.config().model_config]
    assert [(model, fields["voice_name"]) for model, fields in models] == [("chattts", "default"), ("chattts", "calm")]
    assert models[0][1]["language_code"] == "en,zh"
    assert len(caller.config("tts-1").model_config) == 2
    assert refusal(lambda: caller.config(CANARY)) == ("NOT_FOUND", "model_not_found")


@pytest.mark.parametrize("name", ["Magpie-Multilingual.EN-US.Mia", "Magpie-ZeroShot.Male", "English-US-Magpie-Flow.Female"])
def test_the_style_of_a_voice_is_named_and_the_voice_speaks(name: str):
    speaker = Speaker()
    with riva_serving(make_services(speaker, voice_id=shipped_library().canonical)) as address:
        caller = Caller(address)
        assert "x-ignored-fields" not in caller.whole(text=TEXT, voice_name=name)[1]
        for style in (".Angry", "-Sad", ".pleasantsurprised"):
            assert caller.whole(text=TEXT, voice_name=name + style)[1]["x-ignored-fields"] == "voice_name.style"
        unknown = f"{name}.{CANARY}"
        assert refusal(lambda: caller.whole(text=TEXT, voice_name=unknown)) == ("INVALID_ARGUMENT", "voice_not_found")
    assert len({request.voice for request in speaker.requests}) == 1


def test_what_has_no_effect_is_named_or_refused():
    fields: dict[str, Any] = {"text": TEXT, "custom_configuration": {"exaggeration": "1", "input": "x"}}
    fields["zero_shot_data"] = {"quality": 20}
    with riva_serving(make_services(Speaker())) as address:
        _, trailing = Caller(address).whole(**fields)
        named = {"exaggeration", "custom_configuration.input", "zero_shot_data.quality"}
        assert set(trailing["x-ignored-fields"].split(", ")) == named
        strict = Caller(address, strict="1")
        assert refusal(lambda: strict.whole(**fields)) == ("INVALID_ARGUMENT", "unknown_field")


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"text": ""}, ("INVALID_ARGUMENT", "out_of_range")),
        ({"text": "x" * 5000}, ("INVALID_ARGUMENT", "input_too_long")),
        ({"text": TEXT, "voice_name": CANARY}, ("INVALID_ARGUMENT", "voice_not_found")),
        ({"text": TEXT, "language_code": CANARY * 4}, ("INVALID_ARGUMENT", "out_of_range")),
        ({"text": "<speak>Not closed."}, ("INVALID_ARGUMENT", "invalid_ssml")),
        ({"text": TEXT, "sample_rate_hz": 12_345}, ("INVALID_ARGUMENT", "unsupported_format")),
        ({"text": TEXT, "encoding": 7}, ("INVALID_ARGUMENT", "unsupported_format")),
        ({"text": TEXT, "custom_dictionary": "word sound"}, ("INVALID_ARGUMENT", "invalid_lexicon")),
        ({"text": TEXT, "custom_dictionary": "word  wˈɜːd"}, ("INVALID_ARGUMENT", "invalid_lexicon")),
        ({"text": TEXT, "custom_configuration": {"speed": CANARY}}, ("INVALID_ARGUMENT", "out_of_range")),
        ({"text": TEXT, "custom_configuration": {"model": CANARY}}, ("NOT_FOUND", "model_not_found")),
        ({"text": TEXT, "zero_shot_data": {"audio_prompt": b"RIFF"}}, ("PERMISSION_DENIED", "clone_disabled")),
    ],
)
def test_what_is_refused_has_a_status_and_details(caller: Caller, fields: dict[str, Any], refused: tuple[str, str]):
    assert refusal(lambda: caller.whole(**fields)) == refused
    assert refusal(lambda: caller.stream(fields)) == refused


def test_an_empty_stream_is_refused(caller: Caller):
    assert refusal(lambda: caller.stream()) == ("INVALID_ARGUMENT", "missing_field")


def test_a_deadline_frees_the_model():
    speaker = Speaker(chunks=None, pause_s=0.005)
    services = make_services(speaker)
    with riva_serving(services) as address:
        replies = Caller(address).stream({"text": TEXT}, timeout=0.5)
        next(replies)
        assert refusal(lambda: replies)[0] == "DEADLINE_EXCEEDED"
        wait_until(lambda: speaker.closed == speaker.opened == 1 and not services.speech.admission.in_flight, 30)


@pytest.mark.slow
def test_who_reads_nothing_does_not_keep_the_model():
    speaker = Speaker(chunks=None)
    with riva_serving(make_services(speaker, LimitsConfig(stall_timeout_s=0.2))) as address:
        replies = Caller(address).stream({"text": TEXT})
        next(replies)
        wait_until(lambda: speaker.closed == speaker.opened == 1, 60)
        assert refusal(lambda: replies) == ("DEADLINE_EXCEEDED", "reader_stalled")


def test_an_idempotency_key_means_what_it_means_over_http():
    speaker = Speaker()
    with riva_serving(make_services(speaker)) as address:
        caller = Caller(address, **{"idempotency-key": "k"})
        whole, again = (caller.whole(text=TEXT)[0].audio for _ in range(2))
        assert whole == again
        assert refusal(lambda: caller.whole(text="Something else.")) == ("ABORTED", "idempotency_mismatch")
        streamed = Caller(address, **{"idempotency-key": "s" * 255})
        texts = ({"text": TEXT}, {"text": "And this."}, {"text": TEXT})
        first, second = ([reply.audio for reply in streamed.stream(*texts)] for _ in range(2))
        assert first == second
    seeds = [request.sampling.seed for request in speaker.requests]
    assert seeds[0] == seeds[1] == seed_of("anonymous", "k")
    assert seeds[2:5] == seeds[5:8]
    assert len(set(seeds[2:5])) == 3


def test_a_stream_that_says_nothing_is_not_waited_for():
    services = make_services(Speaker(), conversations=ConversationsConfig(idle_timeout_s=0.2))
    is_over = threading.Event()
    with riva_serving(services) as address:
        assert refusal(lambda: Caller(address).growing({"text": TEXT}, until=is_over)) == ("DEADLINE_EXCEEDED", "timeout")
        wait_until(lambda: not services.speech.admission.in_flight, 30)
        is_over.set()


def test_a_replica_that_stops_does_not_wait_for_the_next_text():
    services = make_services(Speaker())
    is_over = threading.Event()
    with riva_serving(services) as address:
        replies = Caller(address).growing({"text": TEXT}, until=is_over)
        next(replies)
        services.conversations.leave()
        assert refusal(lambda: replies) == ("UNAVAILABLE", "draining")
        is_over.set()


def test_a_replica_that_stops_speaks_the_texts_that_have_arrived():
    services = make_services(Speaker(pause_s=0.02))
    with riva_serving(services) as address:
        replies = Caller(address).stream({"text": TEXT}, {"text": "And this."}, {"text": TEXT})
        received = [next(replies)]
        services.conversations.leave()
        received += replies
    assert {reply.meta.text for reply in received} == {TEXT, "And this."}
    assert sum(len(reply.audio) for reply in received) == 3 * SECOND


def test_any_key_lists_the_voices(store: Store):
    key, _ = add(store, scopes=(Scope.TEXT,))
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))
    with riva_serving(services) as address:
        assert refusal(lambda: Caller(address).config()) == ("UNAUTHENTICATED", "missing_api_key")
        assert Caller(address, authorization=f"Bearer {key}").config().model_config


@pytest.mark.parametrize("method", ["Synthesize", "SynthesizeOnline", "GetRivaSynthesisConfig"])
def test_a_key_is_asked_before_a_message_is_there(store: Store, method: str):
    add(store)
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))
    is_over = threading.Event()
    with riva_serving(services) as address:
        wrong = Caller(address, authorization="Bearer ck-wrong")
        assert refusal(lambda: wrong.raw(method, until=is_over)) == ("UNAUTHENTICATED", "invalid_api_key")
        is_over.set()


PROMPTS = protocol.SynthesizeSpeechRequest(zero_shot_data={"transcript": "x"}).SerializeToString()
ENTRIES = protocol.SynthesizeSpeechRequest(custom_configuration={"x": "y"}).SerializeToString()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (protocol.SynthesizeSpeechRequest(text="x" * (1 << 20)).SerializeToString(), "body_too_large"),
        (ENTRIES * protocol.MOST_FIELDS, "too_many_values"),
        (protocol.SynthesizeSpeechRequest(zero_shot_data={"quality": 1}).SerializeToString() * 600, "too_many_values"),
        (bytes([50, 0xF4, 3]) + b"\x20\x01" * 250 + bytes([50, 0xF4, 3]) + b"\x2a\0" * 250, "out_of_range"),
        (bytes([50, 0xD0, 0x0F]) + b"\x20\x01" * 1000, "too_many_values"),
        (b"\xff" * 20, "invalid_request"),
        (b"\x0a\x05x", "invalid_request"),
        (b"\x08", "invalid_request"),
    ],
)
def test_a_message_is_counted_before_it_is_parsed(caller: Caller, message: bytes, code: str):
    for method in ("Synthesize", "SynthesizeOnline"):
        assert refusal(lambda method=method: caller.raw(method, message)) == ("INVALID_ARGUMENT", code)


def test_cloning_asks_the_scope_of_https_cloning(store: Store, tmp_path: Path):
    without, _ = add(store, scopes=(Scope.SPEECH,))
    services = services_with(str(tmp_path / "store.sqlite"), clone=True)
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))
    with riva_serving(services) as address:
        caller = Caller(address, authorization=f"Bearer {without}")
        for prompt in (b"RIFF", bytes(2 << 20)):
            asked = {"text": TEXT, "zero_shot_data": {"audio_prompt": prompt}, "custom_configuration": {"consent": "true"}}
            assert refusal(lambda asked=asked: caller.whole(**asked)) == ("PERMISSION_DENIED", "scope_missing")


@pytest.mark.slow
def test_words_have_times():
    text = "I think that my sister wanted the answer."
    fields = {"text": text, "sample_rate_hz": 24_000, "enable_word_time_offsets": True, "custom_configuration": {"seed": "1"}}
    with demo_speaker() as speaker, riva_serving(make_services(speaker)) as address:
        whole, _ = Caller(address).whole(**fields)
        streamed = list(Caller(address).stream(fields))
    words = [(word.word, word.start_time, word.end_time) for word in whole.meta.words]
    assert [word for word, _, _ in words] == text.removesuffix(".").split()
    assert all(start < end <= len(whole.audio) / 48 + 1 for _, start, end in words)
    assert [(word.word, word.start_time, word.end_time) for reply in streamed for word in reply.meta.words] == words
    assert b"".join(reply.audio for reply in streamed) == whole.audio


@pytest.mark.slow
def test_a_zero_shot_prompt_is_a_voice_that_is_not_kept(tmp_path: Path):
    prompt = {"audio_prompt": written(*spoken(SAID, tmp_path)), "transcript": SAID}
    services = services_with(str(tmp_path / "store.sqlite"), clone=True)
    object.__setattr__(services, "authenticator", Authenticator(anonymous_scopes=(Scope.SPEECH, Scope.VOICES)))
    with riva_serving(services) as address:
        caller = Caller(address)
        fields: dict[str, Any] = {"text": TEXT, "zero_shot_data": prompt}
        assert refusal(lambda: caller.whole(**fields)) == ("INVALID_ARGUMENT", "missing_field")
        fields["custom_configuration"] = {"consent": "true"}
        assert caller.whole(**fields)[0].audio
        assert refusal(lambda: caller.whole(**fields, voice_name="alloy")) == ("INVALID_ARGUMENT", "conflicting_fields")
        fields["zero_shot_data"] = {**prompt, "transcript": ""}
        assert refusal(lambda: caller.whole(**fields)) == ("INVALID_ARGUMENT", "reference_rejected")
        fields["zero_shot_data"] = {**prompt, "audio_prompt": b"no sound"}
        assert refusal(lambda: caller.whole(**fields)) == ("INVALID_ARGUMENT", "unsupported_format")
    assert not services.voices.library._temporary
    assert all(voice.version is None for voice in services.voices.library.list())


CONFIGURATION = st.dictionaries(st.sampled_from(["seed", "speed", "model", "latency", "x"]), st.text(max_size=3))
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=10),
        "language_code": st.text(max_size=5),
        "voice_name": st.text(max_size=5),
        "encoding": st.integers(0, 25),
        "sample_rate_hz": st.integers(-1, 50_000),
        "custom_dictionary": st.text(max_size=10),
        "custom_configuration": CONFIGURATION,
    },
)


@settings(max_examples=examples(25), deadline=None)
@given(fields=FIELDS)
def test_whatever_is_asked_is_answered_and_is_never_a_fault_of_the_service(caller: Caller, fields: dict[str, Any]):
    try:
        assert caller.whole(**fields)[0].audio
    except grpc.RpcError as error:
        refused: Any = error
        assert refused.code().name in ("INVALID_ARGUMENT", "NOT_FOUND"), refused.details()


@pytest.mark.parametrize(
    ("peer", "address"), [("ipv4:127.0.0.1:5", "127.0.0.1"), ("ipv6:%5B::1%5D:5", "::1"), ("unix:/tmp/x", ""), ("", "")]
)
def test_the_address_of_a_peer(peer: str, address: str):
    assert address_of(peer) == address


@pytest.mark.parametrize(("reason", "status"), [(None, b"\x08\x01"), ("the model is being loaded", b"\x08\x02")])
def test_a_probe_is_told_whether_it_would_speak(reason: str | None, status: bytes):
    """As grpc.health.v1 has it on the wire; a probe has no key."""
    with riva_serving(make_services(Speaker(), not_ready=reason)) as address, grpc.insecure_channel(address) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60) == status


def test_a_document_of_ssml_is_one(caller: Caller, speaker: Speaker):
    caller.whole(text="<speak>Hello. <break time='1s'/> There.</speak>")
    request = speaker.requests[-1]
    assert (request.text.split(), sum(passage.silence_ms for passage in request.passages)) == (["Hello.", "There."], 1000)


# NVIDIA's client, unmodified, in a virtual environment of its own: all three calls, with the demo voice.


EXPECTED = {
    "first_lines": True,
    "whole": True,
    "words": ["Hello", "there"],
    "streamed_as_whole": True,
    "several": True,
    "voices": True,
    "dictionary": True,
    "refused": ["INVALID_ARGUMENT", "voice_not_found"],
}


@pytest.mark.nightly
def test_all_three_calls_of_the_client():
    library = demo_library()
    with demo_speaker(library=library) as speaker, riva_serving(make_services(speaker, voice_id=library.canonical)) as address:
        command = [python_of_clients(RIVA), str(RIVA_SCENARIOS), address]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED


def test_the_client_is_pinned():
    lines = [line for line in RIVA.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z-]+==[0-9.]+", line) for line in lines)
    assert any(line.startswith("nvidia-riva-client==") for line in lines)
