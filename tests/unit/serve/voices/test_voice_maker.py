"""Voices from blends, embeddings and recordings, over HTTP; previews, similar seeds, and a process without descriptors."""

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from pipeline.config import PipelineConfig
from pipeline.errors import AtCapacity
from pipeline.store.open import open_store
from pipeline.types import AudioChunk, SchedulingParams, SynthesisRequest
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.seeds import draw_embedding
from pipeline.voices.strings import decode_embedding, encode_embedding
from serve.access.api_keys import Quota
from serve.access.caller import ANONYMOUS_CALLER, Caller
from serve.access.quotas import LocalQuotas
from serve.config.app_config import VoicesConfig
from serve.config.model_versions import versions_of
from serve.errors import ApiError
from serve.voices.voice_loudness import VoiceLoudness
from serve.voices.voice_sampler import PREVIEW_TEXT
from serve.voices.voice_service import VoiceService
from tests.support.fakes import Speaker, StepCounter, make_voices
from tests.support.live_server import Live, serving
from tests.support.recordings import SAID, spoken, written
from tests.support.voice_routes import CATALOGUE, WIDTH, clone, refused, services_with, voices


def test_embeddings_go_in_and_out_as_chattts_writes_them(live: Live):
    string = encode_embedding(draw_embedding(5, WIDTH))
    reply = voices(live, "POST", json={"name": "mine", "embedding": string})
    assert reply.status_code == 201, reply.text
    assert voices(live, path="/mine").json()["embedding"] == string
    assert voices(live, path="/seed:5").json()["embedding"] == string
    inline = live.speak(voice=f"emb:{string}")
    assert inline.status_code == 200
    assert inline.headers["X-Voice-Id"].startswith("emb:")
    assert len(inline.headers["X-Voice-Id"]) == 20
    refused(voices(live, "POST", json={"name": "other", "embedding": "一二三"}), 400, "invalid_embedding")


def test_blends_are_frozen_when_they_are_made(live: Live):
    voices(live, "POST", json={"name": "anna", "seed": 7})
    reply = voices(
        live,
        "POST",
        "/blend",
        json={"name": "both", "blend": [{"voice": "anna", "weight": 3}, {"voice": "alloy", "weight": 1}]},
    )
    assert reply.status_code == 201, reply.text
    embedding = decode_embedding(voices(live, path="/both").json()["embedding"], WIDTH).astype(np.float64)
    exact = 0.75 * draw_embedding(7, WIDTH).astype(np.float64) + 0.25 * draw_embedding(287, WIDTH).astype(np.float64)
    assert np.abs(embedding - exact).max() < 1e-2
    assert live.speak(voice="blend:anna(0.75)+alloy(0.25)").headers["X-Voice-Id"] == "blend:anna@1(0.75)+voice-287(0.25)"
    voices(live, "DELETE", "/anna")
    assert live.speak(voice="both").status_code == 200
    refused(live.speak(voice="blend:anna(1)+alloy(1)"), 400, "voice_not_found")
    refused(live.speak(voice="blend:default(1)"), 400, "invalid_request")


@pytest.mark.slow
@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_recording_becomes_a_voice(live: Live, speech: tuple[np.ndarray, int], container: str):
    reply = clone(live, written(*speech, container), languages="en, zh", ref_text=SAID.replace("from now on", "100 %"))
    assert reply.status_code == 201, reply.text
    card = reply.json()
    assert (card["origin"], card["consent"], card["languages"]) == ("upload", True, ["en", "zh"])
    assert card["reference"]["seconds"] == pytest.approx(len(speech[0]) / speech[1], abs=0.1)
    assert live.speak(voice="me").headers["X-Voice-Id"] == "me@1"
    assert voices(live, path="/me").json()["embedding"] is None
    stored = live.services.voices.library.find("me")
    assert stored is not None
    assert "one hundred percent" in stored.voice.sample_text, "as the text front end writes it"
    assert stored.voice.sample_codes is not None
    assert len(stored.voice.sample_codes) == pytest.approx(card["reference"]["seconds"] * 46.875, abs=2)


@pytest.mark.slow
def test_recordings_that_cannot_be_a_voice_are_refused(live: Live, speech: tuple[np.ndarray, int]):
    samples, rate = speech
    error = refused(clone(live, written(0 * samples, rate)), 422, "reference_rejected")
    assert "0.0 s of speech found" in error["message"]
    assert "too quiet" in error["message"], "every reason at once"
    refused(clone(live, b"ffconcat version 1.0\nfile 'secret.wav'"), 400, "unsupported_format")
    error = refused(clone(live, written(samples, rate), ref_text="x" * 999), 422, "reference_rejected")
    assert error["param"] == "ref_text"
    refused(clone(live, written(samples, rate), ref_text="..."), 422, "reference_rejected")


def test_a_form_has_what_it_needs(live: Live, speech: tuple[np.ndarray, int]):
    content = written(*speech)
    assert refused(clone(live, content, consent="no"), 400, "missing_field")["param"] == "consent"
    assert refused(clone(live, content, ref_text=""), 400, "out_of_range")["param"] == "ref_text"
    data = {"name": "me", "ref_text": SAID, "consent": "true"}
    error = refused(voices(live, "POST", data=data, files={"wrong": ("a", content)}), 400, "missing_field")
    assert error["param"] == "audio_sample"
    refused(clone(live, content, unheard="of"), 400, "unknown_field")
    refused(clone(live, content, name="alloy"), 409, "voice_exists")
    head = {"Content-Type": "multipart/form-data"}
    refused(voices(live, "POST", data=b"nonsense", headers=head), 400, "invalid_form")
    refused(
        voices(live, "POST", data=b"--x\r\n", headers={"Content-Type": "multipart/form-data; boundary=x"}), 400, "missing_field"
    )


def test_uploads_are_counted_while_they_arrive(tmp_path: Path):
    with serving(services_with(str(tmp_path / "store.sqlite"), clone=True, max_upload_bytes=100_000)) as live:
        refused(clone(live, bytes(120_000)), 413, "body_too_large")
        refused(clone(live, bytes(1_000_000)), 413, "body_too_large")


def test_cloning_is_off_unless_it_is_switched_on(tmp_path: Path):
    with serving(services_with(str(tmp_path / "store.sqlite"))) as live:
        refused(clone(live, b"RIFF"), 403, "clone_disabled")
        refused(live.speak(voice="emb:一"), 400, "invalid_request")


# Previews.


def test_a_voice_is_previewed_in_a_language_the_checkpoint_speaks():
    texts: list[str] = []

    async def stream(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        texts.append(request.text)
        async with aclosing(Speaker().stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    library = SimpleNamespace(
        find=lambda name: SimpleNamespace(record=SimpleNamespace(languages=("zh",))), canonical=str, preview=lambda stored: None
    )
    make = partial(VoiceService, library, VoicesConfig(), stream, StepCounter(), model="m", max_prompt=999)
    for speaks in (("en",), ("zh", "en"), ("zh",)):
        asyncio.run(make(speaks=speaks).sampler.preview("anna", ANONYMOUS_CALLER))
    assert [text.isascii() for text in texts] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["anna", "anna@1", "alloy", "seed:3", "default", "blend:alloy(1)+ash(1)"])
def test_every_voice_has_a_preview_and_a_score(live: Live, name: str):
    voices(live, "POST", json={"name": "anna", "seed": 7})
    preview = voices(live, path=f"/{name}/preview")
    assert preview.headers["Content-Type"] == "audio/mpeg"
    samples, rate = soundfile.read(io.BytesIO(preview.content))
    assert rate == 24_000
    assert np.abs(samples).max() > 0.01
    score = voices(live, "POST", f"/{name}/score").json()
    assert 0 <= score["stability"] <= 1
    if name.startswith("anna"):
        assert voices(live, path="/anna").json()["stability"] == score["stability"]


# Similar seeds.


def test_random_voices_are_seeds_and_follow_wishes(live: Live):
    plain = voices(live, "POST", "/random", json={"count": 3, "seed": 100}).json()["voices"]
    assert [voice["id"] for voice in plain] == ["seed:100", "seed:101", "seed:102"]
    near = voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"like": "alloy"}}).json()["voices"]
    far = voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"unlike": "alloy"}}).json()["voices"]
    assert min(voice["similarity"] for voice in near) > max(voice["similarity"] for voice in far)
    assert voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"like": "alloy"}}).json()["voices"] == near
    assert live.speak(voice=near[0]["id"]).status_code == 200
    refused(voices(live, "POST", "/random", json={"count": 51}), 400, "out_of_range")
    refused(voices(live, "POST", "/random", json={"filter": {"like": "alloy", "unlike": "ash"}}), 400, "conflicting_fields")


# 256 file descriptors, and then none: what starts processes and opens files says so and goes on afterwards.


ROOT = Path(__file__).resolve().parents[4]

# A process of its own: its limit is for good. On the event loop that replicas run on.
SCRIPT = """
import asyncio, os, resource, sys
from pathlib import Path

import uvloop

from pipeline.errors import AtCapacity, EngineDead, SynthesisError
from pipeline.text.isolation.isolated_frontend import IsolatedFrontend
from pipeline.types import SynthesisRequest
from serve.voices.voice_maker import UploadReader

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
recording = Path(sys.argv[1]).read_bytes()


def take_all():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return held


async def main():
    front = IsolatedFrontend(Path(sys.argv[2]), max_prompt=192, max_steps=500)
    reader = UploadReader()
    request = SynthesisRequest("r", "Hello there.", "default", timeout_s=60)
    held = take_all()
    for asking, kind in ((lambda: front.read(request), EngineDead), (lambda: reader.read(recording), AtCapacity)):
        for _ in range(2):
            try:
                await asyncio.wait_for(asking(), 60)
                raise SystemExit("it needs no descriptor?")
            except SynthesisError as error:
                assert isinstance(error, kind), repr(error)
    for number in held:
        os.close(number)
    for _ in range(40):  # nothing was left open by those that failed
        await front.read(request)
    for _ in range(3):
        await reader.read(recording)
    assert len(os.listdir("/proc/self/fd")) < 60
    print("held", flush=True)


uvloop.run(main())
os._exit(0)
"""


@pytest.mark.slow
def test_without_a_free_descriptor_a_sentence_comes_and_later_everything_goes_on(tmp_path: Path, taught_root: Path):
    recording = tmp_path / "me.wav"
    recording.write_bytes(written(*spoken(SAID, tmp_path)))
    command = [sys.executable, "-c", SCRIPT, str(recording), str(taught_root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    assert done.stdout == "held\n", done.stderr


# The loudness of a voice: measured once, however many ask for it, and kept for the shipped ones.


(VERSION,) = versions_of(PipelineConfig(), {})


def loudness(folder: Path, speaker: Speaker, **config: Any) -> VoiceLoudness:
    store = open_store(str(folder / "store.sqlite"))
    return make_voices(
        speaker.stream, VoiceLibrary(VoiceCatalogue.load(CATALOGUE, WIDTH), store), VoicesConfig(**config)
    ).loudness


async def gains(measure: VoiceLoudness, *names: str, caller: Caller = ANONYMOUS_CALLER) -> dict[str, float]:
    return await measure.gains_db(set(names), VERSION, SchedulingParams(), caller)


async def test_a_voice_is_measured_once_and_a_shipped_one_once_for_all_replicas(tmp_path: Path):
    speaker, other = Speaker(), Speaker()
    measure = loudness(tmp_path, speaker)
    first, second = await asyncio.gather(*(gains(measure, "voice-287", "seed:7") for _ in range(2)))
    assert first == second
    assert (await gains(measure, "seed:7"))["seed:7"] == first["seed:7"]
    assert first["voice-287"] == pytest.approx(-20 - -9.7, abs=1.0), "a sine of half the amplitude is far louder than -20 LUFS"
    assert sorted(request.voice for request in speaker.requests) == ["seed:7", "voice-287"]
    assert {request.sampling.seed for request in speaker.requests} == {1}, "the seed of previews, whatever is spoken"
    assert await gains(loudness(tmp_path, other), "voice-287") == {"voice-287": first["voice-287"]}
    assert not other.requests, "kept in the store"


async def test_a_failed_measure_is_made_again(tmp_path: Path):
    speaker = Speaker(fails_at=0, error=AtCapacity("full", retry_after_s=1.0))
    measure = loudness(tmp_path, speaker)
    with pytest.raises(AtCapacity):
        await gains(measure, "seed:7")
    speaker.fails_at = None
    assert (await gains(measure, "seed:7"))["seed:7"] < 0


async def test_without_a_target_nothing_is_measured(tmp_path: Path):
    speaker = Speaker()
    assert await gains(loudness(tmp_path, speaker, loudness_lufs=None), "seed:7") == {}
    assert not speaker.requests


@pytest.mark.parametrize(("requests", "most"), [(1, 1), (4, 2)])
async def test_a_replica_measures_two_voices_at_a_time_and_a_request_one(tmp_path: Path, requests: int, most: int):
    speaker = Speaker(pause_s=0.01)
    measure, open_now = loudness(tmp_path, speaker), list[int]()
    voices = [[f"seed:{request}{number}" for number in range(3)] for request in range(1, requests + 1)]

    async def watch() -> None:
        while True:
            open_now.append(speaker.opened - speaker.closed)
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    results = await asyncio.gather(*(gains(measure, *names) for names in voices))
    watching.cancel()
    assert [sorted(result) for result in results] == voices
    assert max(open_now) == most


async def test_a_measure_ends_when_the_last_request_for_it_leaves(tmp_path: Path):
    speaker = Speaker(chunks=None, pause_s=0.01)
    measure = loudness(tmp_path, speaker)
    first, second = (asyncio.create_task(gains(measure, "seed:7", "seed:8")) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.sleep(0.05)
    assert (speaker.opened, speaker.closed) == (1, 0), "the other one waits for it"
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert (speaker.opened, speaker.closed) == (1, 1), "its stream is closed by then, and no other voice is begun"
    speaker.chunks = 3
    assert (await gains(measure, "seed:7"))["seed:7"] < 0, "it is measured anew"


async def test_a_request_during_the_end_of_an_abandoned_measure_begins_another(tmp_path: Path):
    measure = loudness(tmp_path, Speaker(first_pause_s=0.02))
    abandoned = asyncio.create_task(gains(measure, "seed:7"))
    await asyncio.sleep(0.01)
    abandoned.cancel()
    assert (await gains(measure, "seed:7"))["seed:7"] < 0


async def test_the_first_caller_pays_for_measuring_a_voice(tmp_path: Path):
    quotas, speaker, sentence = LocalQuotas(), Speaker(first_pause_s=0.01), len(PREVIEW_TEXT["en"])
    poor, first, second = (
        Caller(name, quota=Quota(characters_a_day=most, audio_s_a_minute=1e6), quotas=quotas)
        for name, most in (("poor", 1), ("first", 1000), ("second", 1000))
    )
    measure = loudness(tmp_path, speaker)
    measures = [asyncio.create_task(gains(measure, "seed:7", caller=caller)) for caller in (poor, first, second)]
    refused, *gains_db = await asyncio.gather(*measures, return_exceptions=True)
    assert isinstance(refused, ApiError)
    assert gains_db[0] == gains_db[1]
    assert [await caller.characters_today() for caller in (poor, first, second)] == [0, sentence, 0]
    speaker.chunks, speaker.pause_s = None, 0.01
    abandoned = asyncio.create_task(gains(measure, "seed:8", caller=second))
    await asyncio.sleep(0.1)
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    assert await second.characters_today() == sentence, "what was begun is paid"
    assert quotas._used("second").audio_due > 0
