"""ElevenLabs' sockets as its clients use them: what Pipecat's and LiveKit's services send and read."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.sync.client import connect

from pipeline.errors import NoSpeakableText
from pipeline.store.store import Store
from serve.access.authentication import Authenticator
from serve.config.app_config import ConversationsConfig, LimitsConfig
from serve.http import anteroom
from serve.http.bounded_fields import MOST_UNKNOWN
from serve.speech.conversation import context as contexts
from serve.speech.schemas.base import read_body
from tests.support.elevenlabs_client import Client, audio_of
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import CANARY, Live, serving

NO_TIMES = {"alignment": None, "normalizedAlignment": None}
END = {"audio": None, "isFinal": True, **NO_TIMES}


@contextmanager
def talking(
    live: Live, query: str = "output_format=pcm_24000&seed=7", *, multi: bool = True, voice: str = "alloy"
) -> Iterator[Client]:
    path = f"/v1/text-to-speech/{voice}/{'multi-' if multi else ''}stream-input?{query}"
    with connect(live.url.replace("http", "ws") + path) as connection:
        yield Client(connection)


def named(context: str) -> dict[str, str]:
    return {"contextId": context, "context_id": context}


def texts_of(live: Live, count: int) -> list[str]:
    return [request.text for request in live.services.speech.stream.__self__.requests[-count:]]


def test_the_messages_of_a_socket_field_by_field(live):
    with talking(live, multi=False) as client:
        client.say(
            text=" ",
            try_trigger_generation=True,
            voice_settings=None,
            generation_config={"chunk_length_schedule": [50]},
            **{"xi-api-key": "none"},
        )
        client.say(text="Hello there. ", try_trigger_generation=True)
        client.say(text="")
        messages, code, reason = client.closed()
    *spoken, last = messages
    ignored = spoken[0].pop("ignored_fields")
    assert sorted(ignored) == ["generation_config", "try_trigger_generation"]
    assert all(
        message | NO_TIMES | {"isFinal": None} == message and set(message) == {"audio", "isFinal", *NO_TIMES}
        for message in spoken
    )
    assert (last, code, reason) == (END, 1000, "")
    assert audio_of(messages) == live.speak(input="Hello there. ", seed=7).content
    assert texts_of(live, 2) == ["Hello there. "] * 2


def test_an_address_is_checked_once_whatever_it_says(live, monkeypatch: pytest.MonkeyPatch):
    """However many contexts follow; the names of its fields without effect are bounded as those of a message."""
    checked: list[bytes] = []
    monkeypatch.setattr(contexts, "read_body", lambda kind, raw: checked.append(raw) or read_body(kind, raw))
    with talking(live, "output_format=pcm_24000&" + "&".join(f"f{number}=" for number in range(1000))) as client:
        for name in ("a", "b", "c"):
            client.say(text="Hello. ", context_id=name, close_context=True, flush=True)
        client.say(close_socket=True)
        messages, _, _ = client.closed()
    named = [message["ignored_fields"] for message in messages if "ignored_fields" in message]
    assert (len(checked), [len(names) for names in named]) == (1, [MOST_UNKNOWN + 1] * 3)


@pytest.mark.parametrize("multi", [True, False])
def test_what_has_no_effect_is_named_wherever_it_stands(live, multi: bool):
    later = {"generation_config": {"chunk_length_schedule": [50]}, "novel": 1}
    context = {"context_id": "c"} if multi else {}
    with talking(live, multi=multi) as client:
        client.say(text="One. ", flush=True, **context)
        while not client.hear()["audio"]:
            pass
        client.say(text="Two. ", flush=True, **later, **context)
        client.say(**({"close_socket": True} if multi else {"text": ""}), **context)
        messages, code, _ = client.closed()
    assert {name for message in messages for name in message.get("ignored_fields", ())} == set(later)
    assert code == 1000


@pytest.mark.parametrize("multi", [True, False])
def test_what_has_no_effect_is_refused_if_the_client_asks_for_it(live, multi: bool):
    context = {"context_id": "c"} if multi else {}
    with talking(live, "output_format=pcm_24000&seed=7&strict=1", multi=multi) as client:
        client.say(text="One. ", flush=True, **context)
        while not client.hear()["audio"]:
            pass
        client.say(text="Two. ", flush=True, try_trigger_generation=True, **context)
        while "error" not in (refused := client.hear()):
            pass
    assert refused["error"] == "unknown_field"


def test_what_pipecat_sends(live):
    query = "model_id=eleven_flash_v2_5&output_format=pcm_24000&auto_mode=true&seed=7"
    with talking(live, query) as client:
        client.say(text=" ", context_id="c1", voice_settings={"stability": 0.5, "speed": 1.0})
        client.say(text="", context_id="c1")  # keeps alive
        client.say(text="Hello there. ", context_id="c1")
        client.say(text="How are you? ", context_id="c1")
        client.say(context_id="c1", flush=True)
        client.say(context_id="c1", close_context=True)
        messages = client.until_final()
        assert messages[-1] == {**END, **named("c1")}
        assert messages[0]["ignored_fields"] == ["voice_settings.stability"]
        assert all(named("c1").items() <= message.items() for message in messages)
        assert audio_of(messages) == 2 * live.speak(seed=7).content
        assert texts_of(live, 3)[:2] == ["Hello there. ", "How are you? "]
        client.say(text="Again. ", context_id="c1")
        client.say(close_socket=True)
        messages, code, _ = client.closed()
    assert (audio_of(messages), messages[-1], code) == (live.speak(seed=7).content, {**END, **named("c1")}, 1000)


def test_what_livekit_sends(live):
    query = (
        "model_id=eleven_turbo_v2_5&output_format=pcm_24000&language_code=en&enable_ssml_parsing=false&enable_logging=true"
        "&inactivity_timeout=180&apply_text_normalization=auto&sync_alignment=true&auto_mode=true&seed=7"
    )
    with talking(live, query) as client:
        for number in range(5):
            client.say(text=" ", voice_settings={}, context_id=f"c{number}")
        for number in range(5):
            client.say(text="Hello there. ", context_id=f"c{number}", flush=True)
            client.say(text="", context_id=f"c{number}", flush=True)
            client.say(context_id=f"c{number}", close_context=True)
        messages = list(itertools.chain.from_iterable(client.until_final() for _ in range(5)))
    for number in range(5):
        mine = [message for message in messages if message["contextId"] == f"c{number}"]
        assert "ignored_fields" not in mine[0]
        assert (audio_of(mine), mine[-1]) == (live.speak(seed=7).content, {**END, **named(f"c{number}")})


def test_a_closed_context_finishes_what_was_flushed_and_drops_the_rest(live):
    with talking(live) as client:
        client.say(text="This is spoken.", context_id="c", flush=True)
        client.say(text="This is not", context_id="c")
        client.say(context_id="c", close_context=True)
        client.say(context_id="never opened", close_context=True)
        assert len(audio_of(client.until_final())) == 5 * 9600
        client.say(text="Said with its end. ", context_id="d", flush=True, close_context=True)
        assert len(audio_of(client.until_final())) == 5 * 9600
        client.say(text="The last words", context_id="e", close_socket=True)
        messages, code, _ = client.closed()
        assert (len(audio_of(messages)), code) == (5 * 9600, 1000)
    assert texts_of(live, 3) == ["This is spoken.", "Said with its end. ", "The last words"]


def test_no_context_ends_without_audio():
    speaker = Speaker(fails_at=0, error=NoSpeakableText("nothing in the text can be spoken"))
    with serving(make_services(speaker)) as live, talking(live) as client:
        client.say(text="...", context_id="c", flush=True)
        client.say(context_id="c", close_context=True)
        messages = client.until_final()
    assert audio_of(messages) == bytes(2 * 2400)
    assert messages[-1] == {**END, **named("c")}


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"voice": CANARY}, "voice_not_found"),
    ({"query": f"model_id={CANARY}"}, "model_not_found"),
    ({"query": "output_format=wav_24001"}, "unsupported_format"),
    ({"query": f"output_format={CANARY}"}, "unsupported_format"),
    ({"query": "inactivity_timeout=181"}, "out_of_range"),
    ({"query": f"seed={CANARY}"}, "out_of_range"),
    ({"query": f"language_code={CANARY * 4}"}, "out_of_range"),
    ({"query": f"{CANARY}=1&strict=1"}, "unknown_field"),
]


@pytest.mark.parametrize("multi", [False, True])
def test_an_address_that_is_wrong_closes_the_socket_in_words(live, multi):
    for query, word in REFUSED:
        with talking(live, multi=multi, **query) as client:
            messages, code, reason = client.closed()
        assert ([message["error"] for message in messages], code, reason) == ([word], 1008, word), query
        assert set(messages[0]) == {"message", "error", "code", "request_id"}


WRONG: list[tuple[str, str]] = [
    ("{", "invalid_json"),
    ("[]", "invalid_type"),
    ("[" * 100_000, "invalid_json"),
    ('{"text": 5}', "invalid_type"),
    ("{}", "missing_field"),
    (f'{{"text": " ", "voice_settings": {{"speed": "{CANARY}"}}}}', "invalid_type"),
    ('{"text": " ", "voice_settings": {"speed": 99}}', "out_of_range"),
    ('{"text": " ", "pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": "none"}]}', "lexicon_not_found"),
]


def test_a_message_that_is_wrong_ends_a_socket_of_one_context_and_no_other(live):
    for frame, word in WRONG:
        with talking(live, multi=False) as client:
            client.connection.send(frame)
            messages, code, _ = client.closed()
            assert ([message["error"] for message in messages], code) == ([word], 1008), frame
    with talking(live) as client:
        for frame, word in WRONG:
            client.connection.send(frame)
            assert client.hear()["error"] == word, frame
        client.connection.send(b"\x00")
        assert client.hear()["error"] == "invalid_type"
        client.say(text=" ", context_id="c", voice_settings={"speed": 1.1})
        client.say(text="Hello.", context_id="c", voice_settings={"speed": 1.2})
        refused = client.hear()
        assert (refused["error"], refused["code"], refused["contextId"]) == ("settings_changed", 1008, "c")
        client.say(text="Hello.", context_id="c", voice_settings={"speed": 1.1})
        client.say(close_socket=True)
        messages, code, _ = client.closed()
    assert (len(audio_of(messages)), code) == (len(live.speak(seed=7, speed=1.1).content), 1000)


def test_failures_say_what_they_are_and_the_other_contexts_go_on():
    with serving(make_services(Speaker(fails_at=1))) as live:
        with talking(live) as client:
            client.say(text="Hello.", context_id="c", flush=True)
            assert client.hear()["audio"]
            failed = client.hear()
            assert (failed["error"], failed["code"], failed["contextId"]) == ("internal_error", 1011, "c")
            client.say(close_socket=True)
            assert client.closed() == ([], 1000, "")
        with talking(live, multi=False) as client:
            client.say(text="Hello. ", flush=True)
            messages, code, _ = client.closed()
            assert (messages[-1]["error"], code) == ("internal_error", 1011)


def test_overload_and_idleness():
    services = make_services(Speaker(), LimitsConfig(max_in_flight=1), conversations=ConversationsConfig(max_sockets=1))
    with serving(services) as live, talking(live, "inactivity_timeout=2") as client:
        with talking(live) as second:
            second.say(text=" ", context_id="d")
            messages, code, _ = second.closed()
            assert ([(message["error"], message["code"]) for message in messages], code) == (2 * [("system_busy", 1013)], 1013)
            assert messages[1]["context_id"] == messages[1]["contextId"] == "d", "LiveKit's waits for ever for one not told of"
        with services.speech.admission.acquire():
            client.say(text="Hello.", context_id="c", flush=True)
            refused = client.hear()
        assert (refused["error"], refused["code"], refused["contextId"]) == ("system_busy", 1013, "c")
        assert client.closed() == ([], 1000, "idle for 2 s")


def test_without_a_key(store: Store, monkeypatch):
    monkeypatch.setattr(anteroom, "MOST_S", 0.5)
    add(store)
    for context in ("c", None):
        with guarded(Authenticator(ring_of(store))) as live, talking(live) as client:
            if context is not None:
                client.say(text=" ", context_id=context)
            messages, code, _ = client.closed()
        assert [(message["error"], message["code"], message.get("context_id")) for message in messages] == [
            ("missing_api_key", 1008, context)
        ]
        assert code == 1008
