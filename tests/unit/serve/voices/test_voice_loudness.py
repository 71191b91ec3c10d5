"""The loudness of a voice: measured once, however many ask for it, and kept for the shipped ones."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import PipelineConfig
from pipeline.errors import AtCapacity
from pipeline.store.open import open_store
from pipeline.types import SchedulingParams
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from serve.access.api_keys import Quota
from serve.access.caller import ANONYMOUS_CALLER, Caller
from serve.access.quotas import LocalQuotas
from serve.config.app_config import VoicesConfig
from serve.config.model_versions import versions_of
from serve.errors import ApiError
from serve.voices.voice_loudness import VoiceLoudness
from serve.voices.voice_sampler import PREVIEW_TEXT
from tests.support.fakes import Speaker, make_voices
from tests.support.voice_routes import CATALOGUE, WIDTH

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
