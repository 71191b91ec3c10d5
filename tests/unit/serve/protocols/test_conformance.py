"""What every protocol promises alike, asked of each of them; its own wire is tested in its own folder."""

import asyncio
import io
import re
import subprocess
from dataclasses import replace

import av
import numpy as np
import pytest

from pipeline.audio.encode import Encoder
from pipeline.audio.formats import named_format
from pipeline.errors import AtCapacity, EngineDead, EngineFault, NoSpeakableText
from pipeline.store.store import Store
from pipeline.types import Lane
from serve.access.api_keys import NAMESPACE, Quota, Scope
from serve.access.authentication import Authenticator
from serve.config.app_config import ConversationsConfig, LimitsConfig
from tests.support.dialects import DIALECTS, TEXT, Call, Dialect, Refused
from tests.support.fakes import CHUNK, Speaker, make_services, sine
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import CANARY, Live, serving
from tests.support.tongues import ELEVENLABS, ELEVENLABS_DIALOGUE, ELEVENLABS_SINGLE, Tongue, talking
from tests.support.waiting import wait_until

SECOND = 48_000  # bytes of a Speaker's audio of one text
each = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
SOCKETS = [dialect for dialect in DIALECTS if dialect.is_socket]
each_socket = pytest.mark.parametrize("dialect", SOCKETS, ids=lambda dialect: dialect.name)
HOSTILE = "This is 3 < 4 & 5 > 2 </voice> <!-- said."


@each
@pytest.mark.parametrize("text", [TEXT, HOSTILE])
def test_the_audio_is_that_of_the_http_route_and_a_text_is_no_markup(live: Live, dialect: Dialect, text: str):
    audio, ignored = dialect.speak(live, text=text)
    request = live.services.speech.stream.__self__.requests[-1]
    assert (request.text.strip(), request.voice) == (text, "default")
    assert audio == live.speak(input=text, seed=request.sampling.seed).content
    assert ignored == set()


WITH_MARKUP = [(dialect, mark, spoken) for dialect in DIALECTS for mark, spoken in dialect.markup]


@pytest.mark.parametrize(
    ("dialect", "mark", "spoken"), WITH_MARKUP, ids=[f"{dialect.name} {mark}" for dialect, mark, _ in WITH_MARKUP]
)
def test_no_word_of_the_markup_of_a_protocol_is_spoken(live: Live, dialect: Dialect, mark: str, spoken: str):
    audio, _ = dialect.speak(live, text=f"Cats & dogs. {mark} They sleep.")
    request = live.services.speech.stream.__self__.requests[-1]
    text = request.text.replace("[laugh]", "")
    assert re.findall(r"\w+", text) == ["Cats", "dogs", *re.findall(r"\w+", spoken), "They", "sleep"]
    assert len(audio) == SECOND
    assert bool(sum(passage.silence_ms for passage in request.passages)) == ("break" in mark.lower() or "pause" in mark) - (
        "99h" in mark
    )


@each
def test_a_field_without_effect_is_named_or_refused(live: Live, dialect: Dialect):
    audio, ignored = dialect.speak(live, unknown=True)
    assert [name.rpartition(".")[2] for name in ignored] == ["novel"]
    assert len(audio) == SECOND
    if dialect.is_strict:
        assert dialect.refusal(live, unknown=True, strict=True) == dialect.words["strict"]


@each
def test_keys_and_quotas(store: Store, dialect: Dialect):
    key, key_id = add(store, quota=Quota(requests_per_s=None, characters_a_day=len(TEXT) + 5), lanes=(Lane.BULK,))
    other, other_id = add(store, scopes=(Scope.VOICES,))
    with guarded(Authenticator(ring_of(store))) as live:
        assert dialect.refusal(live, closes=True) == dialect.words["missing"]
        assert dialect.refusal(live, "nosuchkey", key="ck-wrong") == dialect.words["wrong"]
        assert dialect.refusal(live, other_id, key=other) == dialect.words["scope"]
        assert len(dialect.speak(live, key_id, key=key)[0]) == SECOND
        scheduling = live.services.speech.stream.__self__.requests[-1].scheduling
        assert (scheduling.tenant, scheduling.lane) == (key_id, Lane.BULK)
        assert dialect.refusal(live, key_id, key=key) == dialect.words["quota"]


@each
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("silent", NoSpeakableText("nothing to say")),
        ("busy", AtCapacity("full", retry_after_s=1.0)),
        ("fault", EngineFault("broken")),
        ("dead", EngineDead("the replica has died")),
        ("bug", RuntimeError(CANARY)),
    ],
)
def test_a_failure_has_the_words_of_the_protocol(dialect: Dialect, kind: str, error: Exception):
    with serving(make_services(Speaker(fails_at=0, error=error))) as live:
        if kind in dialect.words:
            assert dialect.refusal(live) == dialect.words[kind]
        else:
            assert not any(dialect.speak(live)[0]), "silence, or nothing"


@each
def test_a_failure_behind_audio_is_no_end_of_audio(dialect: Dialect):
    with serving(make_services(Speaker(fails_at=2))) as live, dialect.serves(live, "") as address:
        audio = dialect.audio(Call(address))
        pieces = []
        with pytest.raises(Refused):
            pieces.extend(audio)
    assert any(pieces) == dialect.streams


@each
def test_a_client_that_leaves_leaves_nothing_behind(dialect: Dialect):
    speaker = Speaker(chunks=None if dialect.streams else 5, pause_s=0.001)
    services = make_services(speaker)
    with serving(services) as live, dialect.serves(live, "") as address:
        audio = dialect.audio(Call(address))
        assert next(audio)
        audio.close()  # type: ignore[attr-defined]
        wait_until(lambda: speaker.closed == speaker.opened == 1, 30)
        wait_until(lambda: services.conversations.open_now == services.speech.admission.in_flight == 0)


@each
def test_a_full_service_says_so(dialect: Dialect):
    services = make_services(Speaker(), LimitsConfig(max_in_flight=1))
    with serving(services) as live, services.speech.admission.acquire():
        assert dialect.refusal(live) == dialect.words["busy"]


@each_socket
def test_one_socket_too_many_and_a_silent_one(dialect: Dialect):
    limits = ConversationsConfig(max_sockets=1, idle_timeout_s=0.5)
    with serving(make_services(Speaker(), conversations=limits)) as live:
        audio = dialect.audio(Call(live.url, is_open=True))
        assert next(audio)
        assert dialect.refusal(live, closes=True) == (dialect.words["busy"][0], 1013)
        with pytest.raises(Refused) as refusal:
            list(audio)
        assert (refusal.value.code, refusal.value.status) == ("closed", dialect.idle_code)


@each
def test_a_voice_that_is_not_there_is_refused_and_never_repeated(live: Live, dialect: Dialect):
    assert dialect.refusal(live, voice=CANARY, closes=dialect.words["voice"][1] == 1008) == dialect.words["voice"]


@each
def test_the_operator_may_have_the_default_voice_speak_for_one_that_is_not_there(dialect: Dialect):
    with serving(make_services(Speaker(), replaces_unknown_voices=True)) as live:
        audio, ignored = dialect.speak(live, voice=CANARY)
        assert (len(audio), ignored) == (SECOND, {"voice"})
        if dialect.is_strict:
            assert dialect.refusal(live, voice=CANARY, strict=True, closes=dialect.words["voice"][1] == 1008)


@pytest.mark.parametrize("dialect", [dialect for dialect in DIALECTS if dialect.streams], ids=lambda dialect: dialect.name)
def test_a_revoked_key_ends_what_it_listens_to(store: Store, dialect: Dialect):
    key, key_id = add(store)
    add(store)
    ring = ring_of(store)
    speaker = Speaker(chunks=None, pause_s=0.02)
    with guarded(Authenticator(ring), speaker) as live, dialect.serves(live, key_id) as address:
        audio = dialect.audio(Call(address, key=key, closes=True))
        assert next(audio)
        store.delete(NAMESPACE, key_id)
        ring.refresh()
        with pytest.raises(Refused) as refusal:
            list(audio)
        assert refusal.value.code in ("cut", dialect.words["wrong"][0])
        assert not dialect.is_socket or refusal.value.status == 1008
        wait_until(lambda: speaker.closed == speaker.opened)


@pytest.mark.parametrize("dialect", DIALECTS[:-1], ids=lambda dialect: dialect.name)  # the last one has a test of its own
def test_a_service_that_stops_finishes_what_was_flushed(dialect: Dialect):
    services = make_services(Speaker(pause_s=0.02))
    with serving(services) as live, dialect.serves(live, "") as address:
        audio, status = b"", None
        try:
            for piece in dialect.audio(Call(address, is_open=True, closes=True)):
                audio += piece
                services.conversations.leave()
        except Refused as refusal:
            status = refusal.status
        assert len(audio) == SECOND
        assert not dialect.is_socket or status == 1001


FORMATS = ("mp3_22050_32", "mp3_44100_128", "opus_48000_64", "webm_48000_64", "flac_24000", "aac_24000_64", "wav_24000")
LATE = {"mp3": 1105, "aac": 1024}  # samples before the first one, of encoder and decoder
FRAME = {"mp3": 1152, "aac": 1024, "webm": 960}  # samples up to the multiple of which a decoder returns


@pytest.mark.parametrize("tongue", [ELEVENLABS, ELEVENLABS_SINGLE, ELEVENLABS_DIALOGUE], ids=lambda tongue: tongue.name)
@pytest.mark.parametrize("name", [*FORMATS, "pcm_16000", "ulaw_8000"])
def test_the_audio_of_a_context_is_one_stream_of_its_container(tongue: Tongue, name: str):
    """Their clients decode the concatenated audio of a context with one decoder: there is one header, and no sample is lost."""
    parts = ["One is here. ", "Two is here. ", "Three is here. "]
    tongue = replace(tongue, path=tongue.path.replace("pcm_24000", name))

    async def speak(port: int) -> bytes:
        async with talking(tongue, port) as talker:
            await talker.begin()
            for part in parts:
                await talker.say(part)
                await talker.send(tongue.flushes("c"))
            await talker.send(*tongue.ends("c"))
            await talker.until("over")
            return b"".join(talker.audio.values())

    audio = named_format(name)
    speaker = Speaker(chunks=3, chunk_samples=CHUNK * audio.sample_rate // 24_000)
    with serving(make_services(speaker)) as live:
        data = asyncio.run(speak(live.port))
    assert len(speaker.requests) == len(parts)
    chunk = speaker.chunk_samples
    once = np.concatenate([sine(7, place * chunk, chunk) for place in range(3)])
    with Encoder(audio) as encoder:
        assert data == encoder.feed(np.concatenate([once] * len(parts))) + encoder.finish()
    if name in FORMATS:
        expected = 9 * chunk + LATE.get(audio.container, 0)
        least, most = expected, expected + FRAME.get(audio.container, 1) - 1
        with av.open(io.BytesIO(data), format="aac" if audio.container == "aac" else None) as file:
            frames = list(file.decode(audio=0))
        assert least <= sum(frame.samples for frame in frames) <= most
        command = ["ffmpeg", "-v", "warning", *(("-f", "aac") if audio.container == "aac" else ()), "-i", "pipe:0"]
        decoded = subprocess.run([*command, "-f", "s16le", "pipe:1"], input=data, capture_output=True, check=True)
        assert least <= len(decoded.stdout) // 2 <= most
        assert not decoded.stderr or audio.container == "wav", "whose header has no length"
