"""The unmodified `elevenlabs` package against these routes, HTTP and WebSocket."""

from collections.abc import Iterable, Iterator

import pytest
import trustme
from elevenlabs import DialogueInput, VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from websockets.exceptions import InvalidStatus

from pipeline.store.store import Store
from serve.access.api_keys import Quota
from serve.access.authentication import Authenticator
from serve.config.app_config import ConversationsConfig, LimitsConfig
from tests.support.fakes import Speaker, make_services, shipped_library
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import Live, serving
from tests.support.recordings import SAID, spoken, written
from tests.support.voice_routes import voice_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # the package takes seconds to load


def client_of(live: Live, key: str = "none") -> ElevenLabs:
    return ElevenLabs(base_url=live.url, api_key=key)


def test_texts_become_the_bytes_of_the_services_own_route(live):
    client = client_of(live)
    for model in ("eleven_multilingual_v2", "eleven_v3", "chattts"):
        for method in (client.text_to_speech.convert, client.text_to_speech.stream):
            pieces = method("alloy", text="Hello there.", model_id=model, output_format="pcm_24000", seed=7)
            assert b"".join(pieces) == live.speak(seed=7).content
    spoken = client.text_to_speech.convert("alloy", text="Hello there.", seed=7)
    assert b"".join(spoken) == live.speak(seed=7, response_format="mp3", sample_rate=44_100, bitrate=128, stream=False).content


def test_the_first_lines_of_the_packages_own_documentation():
    """Voices, models and formats as its README and its quickstarts name them."""
    george, roger, text = "JBFqnCBsd6RMkjVDRZzb", "CwhRBWXzGAHq8TQ4Fs17", "The first move is what sets everything in motion."
    mp3 = {"model_id": "eleven_multilingual_v2", "output_format": "mp3_44100_128"}
    with serving(make_services(Speaker(), voice_id=shipped_library().canonical)) as live:
        client = client_of(live)
        speech = client.text_to_speech
        assert b"".join(speech.convert(text=text, voice_id=george, **mp3))[:3] == b"ID3"
        assert b"".join(speech.stream(text=text, voice_id=george, **mp3))[:3] == b"ID3"
        assert speech.convert_with_timestamps(voice_id="21m00Tcm4TlvDq8ikWAM", text="This is a test.").audio_base_64
        assert list(speech.stream_with_timestamps(voice_id=george, text=text))
        lines = [
            DialogueInput(text="[cheerfully] Hello, how are you?", voice_id="9BWtsMINqrJLrRacOk9x"),
            DialogueInput(text="[stuttering] I'm... I'm doing well, thank you", voice_id="IKne3meq5aSn9XLyUdCD"),
        ]
        assert b"".join(client.text_to_dialogue.convert(inputs=lines))[:3] == b"ID3"
        assert client.voices.search(sort="name", sort_direction="asc", voice_type="default").voices
        assert client.user.get().subscription.character_limit > 0
        assert b"".join(speech.convert(voice_id=roger, text='Wait. <break time="1.5s" /> Go.'))
        texts = [request.text for request in live.services.speech.stream.__self__.requests]
    assert "cheerfully" not in " ".join(texts)
    assert texts[-1].split() == ["Wait.", "Go."]


def test_settings_have_an_effect_or_are_named(live):
    settings = VoiceSettings(stability=0.5, speed=1.1)
    with client_of(live).text_to_speech.with_raw_response.convert(
        "alloy", text="Hello there.", voice_settings=settings, previous_text="Before.", output_format="pcm_24000", seed=7
    ) as reply:
        assert reply.headers["x-ignored-fields"] == "voice_settings.stability, previous_text"
        assert b"".join(reply.data) == live.speak(seed=7, speed=1.1).content


def test_lists(live):
    client = client_of(live)
    voices = client.voices.get_all().voices
    assert [voice.voice_id for voice in client.voices.search(page_size=100).voices] == [voice.voice_id for voice in voices]
    assert client.voices.get(voices[0].voice_id).name == voices[0].name
    assert client.voices.settings.get(voices[0].voice_id).speed == client.voices.settings.get_default().speed == 1.0
    assert "chattts" in [model.model_id for model in client.models.list()]


def test_refusals_are_in_words(live):
    client = client_of(live)
    refused = [
        (lambda: client.text_to_speech.convert("nobody", text="x"), 404, "voice_not_found"),
        (lambda: client.text_to_speech.convert("alloy", text="x" * 100_000), 400, "max_character_limit_exceeded"),
        (lambda: client.text_to_speech.convert("alloy", text="x", model_id="gpt-9"), 404, "model_not_found"),
        (lambda: client.text_to_speech.convert("alloy", text="x", output_format="mp3_1_1"), 400, "unsupported_format"),
        (lambda: [client.text_to_speech.convert_with_timestamps("nobody", text="x")], 404, "voice_not_found"),
        (lambda: client.text_to_speech.stream_with_timestamps("nobody", text="x"), 404, "voice_not_found"),
        (lambda: [client.voices.get("nobody")], 404, "voice_not_found"),
    ]
    for call, status, name in refused:
        with pytest.raises(ApiError) as error:
            list(call())
        assert (error.value.status_code, error.value.body["detail"]["status"]) == (status, name)


def test_dialogues(live):
    client = client_of(live)
    inputs = [DialogueInput(text="Is it?", voice_id="alloy"), DialogueInput(text="It is.", voice_id="calm")]
    own = '<speak><voice name="alloy">Is it?</voice><voice name="calm">It is.</voice></speak>'
    for method in (client.text_to_dialogue.convert, client.text_to_dialogue.stream):
        spoken = method(inputs=inputs, model_id="eleven_v3", output_format="pcm_24000", seed=7)
        assert b"".join(spoken) == live.speak(input=own, input_type="ssml", seed=7).content
    with client.text_to_dialogue.with_raw_response.convert(inputs=inputs) as reply:
        assert int(reply.headers["character-cost"]) == len("Is it?It is.")
    with pytest.raises(ApiError) as error:
        list(client.text_to_dialogue.convert(inputs=[DialogueInput(text="x", voice_id="nobody")]))
    assert (error.value.status_code, error.value.body["detail"]["status"]) == (404, "voice_not_found")


def test_voices_of_a_recording(tmp_path):
    content = written(*spoken(SAID, tmp_path))
    with voice_server(tmp_path) as live:
        client = client_of(live)
        made = client.voices.ivc.create(name="me", files=[content], labels={"ref_text": SAID, "consent": "true"})
        assert (made.voice_id, made.requires_verification) == ("me", False)
        assert client.voices.get("me").category == "cloned"
        assert b"".join(client.text_to_speech.convert("me", text="Hello.", output_format="pcm_24000"))
        assert client.voices.update("me", name="myself", description="a test").status == "ok"
        assert client.voices.get("me").name == "myself"
        assert client.voices.delete("me").status == "ok"
        without = [
            (lambda: client.voices.get("me"), 404, "voice_not_found"),
            (lambda: client.voices.ivc.create(name="me", files=[content]), 400, "missing_field"),
            (lambda: client.voices.settings.update("default", request=VoiceSettings(speed=1.1)), 400, "settings_not_stored"),
        ]
        for call, status, name in without:
            with pytest.raises(ApiError) as error:
                call()
            assert (error.value.status_code, error.value.body["detail"]["status"]) == (status, name)


def test_keys(store: Store):
    key, key_id = add(store, quota=Quota(characters_a_day=100))
    with guarded(Authenticator(ring_of(store))) as live:
        user = client_of(live, key).user
        assert (user.get().user_id, user.subscription.get().character_limit) == (key_id, 100)
        assert user.get().subscription.character_count == 0
        assert b"".join(client_of(live, key).text_to_speech.convert("alloy", text="Hello.", output_format="pcm_24000"))
        assert user.subscription.get().character_count == len("Hello.")
        with pytest.raises(ApiError) as error:
            list(client_of(live, "ck-wrong").text_to_speech.convert("alloy", text="Hello."))
    assert (error.value.status_code, error.value.body["detail"]["status"]) == (401, "invalid_api_key")


def test_want_of_room(live):
    services = make_services(Speaker(), LimitsConfig(max_in_flight=1))
    with serving(services) as full, services.speech.admission.acquire():
        client = client_of(full)
        for method in (client.text_to_speech.convert, client.text_to_speech.stream):
            with pytest.raises(ApiError) as error:
                list(method("alloy", text="Hello.", request_options={"max_retries": 0}))
            assert (error.value.status_code, error.value.body["detail"]["status"]) == (429, "system_busy")


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """The package speaks to its socket over TLS alone."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(f"{tmp_path}/server.pem")
    authority.cert_pem.write_to_path(f"{tmp_path}/authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", f"{tmp_path}/authority.pem")
    return f"{tmp_path}/server.pem"


def written_to(live: Live, words: Iterable[str], voice: str = "alloy", **fields: str) -> bytes:
    client = ElevenLabs(base_url=f"https://127.0.0.1:{live.port}", api_key="ck-wrong")
    return b"".join(client.text_to_speech.convert_realtime(voice, text=iter(words), output_format="pcm_24000", **fields))


WORDS = ("So this is the first ", "sentence. And he", "re is the second one.")


def test_text_that_is_still_being_written(certificate):
    speaker = Speaker()
    with serving(make_services(speaker, conversations=ConversationsConfig(max_sockets=1)), certificate) as live:
        assert len(written_to(live, WORDS, model_id="eleven_turbo_v2_5")) == 2 * 5 * 9600
        assert [one.text for one in speaker.requests] == ["So this is the first sentence. ", "And here is the second one. "]
        for voice, fields, word in (("nobody", {}, "voice_not_found"), ("alloy", {"model_id": "gpt-9"}, "model_not_found")):
            with pytest.raises(ApiError) as error:
                written_to(live, WORDS, voice, **fields)
            assert error.value.status_code == 1008
            assert word in str(error.value.body)


def test_text_over_a_socket_that_is_refused_or_closed(certificate, store: Store):
    add(store)
    closed = make_services(Speaker())
    object.__setattr__(closed, "authenticator", Authenticator(ring_of(store)))
    full = make_services(Speaker(), conversations=ConversationsConfig(max_sockets=0))
    brief = make_services(Speaker(), conversations=ConversationsConfig(idle_timeout_s=1.0))

    def pausing() -> Iterator[str]:
        yield "So this is not the end "
        for sockets in (1, 0):
            wait_until(lambda sockets=sockets: brief.conversations.open_now == sockets)
        yield "of the text. "

    with serving(closed, certificate) as live, pytest.raises(InvalidStatus) as refused:  # before the upgrade
        written_to(live, WORDS)
    assert refused.value.response.status_code == 401
    assert b"invalid_api_key" in refused.value.response.body
    for services, words, code, sentence in ((full, WORDS, 1013, "overloaded"), (brief, pausing(), 1008, "idle for 1 s")):
        with serving(services, certificate) as live, pytest.raises(ApiError) as error:
            written_to(live, words)
        assert error.value.status_code == code
        assert sentence in str(error.value.body).replace("system_busy", "overloaded"), "the message, or the reason of the close"
