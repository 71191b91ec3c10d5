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


def gains(measure: VoiceLoudness, *names: str) -> dict[str, float]:
    return asyncio.run(measure.gains_db(set(names), VERSION, SchedulingParams(), ANONYMOUS_CALLER))


def test_a_voice_is_measured_once_and_a_shipped_one_once_for_all_replicas(tmp_path: Path):
    speaker = Speaker()

    async def twice() -> list[dict[str, float]]:
        measure = loudness(tmp_path, speaker)
        asked = (measure.gains_db({"voice-2", "seed:7"}, VERSION, SchedulingParams(), ANONYMOUS_CALLER) for _ in range(2))
        return [
            *await asyncio.gather(*asked),
            await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), ANONYMOUS_CALLER),
        ]

    first, second, third = asyncio.run(twice())
    assert first == second
    assert third["seed:7"] == first["seed:7"]
    assert first["voice-2"] == pytest.approx(-20 - -9.7, abs=1.0), "a sine of half the amplitude is far louder than -20 LUFS"
    assert sorted(request.voice for request in speaker.requests) == ["seed:7", "voice-2"]
    assert {request.sampling.seed for request in speaker.requests} == {1}, "the seed of previews, whatever is spoken"
    other = Speaker()
    assert gains(loudness(tmp_path, other), "voice-2") == {"voice-2": first["voice-2"]}
    assert not other.requests, "kept in the store"


def test_a_failed_measure_is_made_again(tmp_path: Path):
    speaker = Speaker(fails_at=0, error=AtCapacity("full", retry_after_s=1.0))

    async def fail_then_measure() -> dict[str, float]:
        measure = loudness(tmp_path, speaker)
        with pytest.raises(AtCapacity):
            await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), ANONYMOUS_CALLER)
        speaker.fails_at = None
        return await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), ANONYMOUS_CALLER)

    assert asyncio.run(fail_then_measure())["seed:7"] < 0


def test_without_a_target_nothing_is_measured(tmp_path: Path):
    speaker = Speaker()
    assert gains(loudness(tmp_path, speaker, loudness_lufs=None), "seed:7") == {}
    assert not speaker.requests


def test_a_replica_measures_two_voices_at_a_time_and_a_request_one(tmp_path: Path):
    speaker = Speaker(pause_s=0.01)
    most: list[int] = []
    voices = [{f"seed:{who}{number}" for number in range(3)} for who in range(1, 5)]

    async def watch() -> None:
        while True:
            most.append(speaker.opened - speaker.closed)
            await asyncio.sleep(0.001)

    async def most_of(asked: list[set[str]]) -> int:
        most.clear()
        measure = loudness(tmp_path, speaker)
        watching = asyncio.create_task(watch())
        told = await asyncio.gather(
            *(measure.gains_db(names, VERSION, SchedulingParams(), ANONYMOUS_CALLER) for names in asked)
        )
        watching.cancel()
        assert [set(each) for each in told] == asked
        return max(most)

    assert asyncio.run(most_of(voices[:1])) == 1
    assert asyncio.run(most_of(voices)) == 2


def test_a_measure_ends_when_the_last_request_for_it_leaves(tmp_path: Path):
    speaker = Speaker(chunks=None, pause_s=0.01)

    async def leave_one_by_one() -> dict[str, float]:
        measure = loudness(tmp_path, speaker)
        asked = [
            asyncio.create_task(measure.gains_db({"seed:7", "seed:8"}, VERSION, SchedulingParams(), ANONYMOUS_CALLER))
            for _ in range(2)
        ]
        await asyncio.sleep(0.05)
        asked[0].cancel()
        await asyncio.sleep(0.05)
        assert (speaker.opened, speaker.closed) == (1, 0), "the other one waits for it"
        asked[1].cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert (speaker.opened, speaker.closed) == (1, 1), "its stream is closed by then, and no other voice is begun"
        speaker.chunks = 3
        return await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), ANONYMOUS_CALLER)

    assert asyncio.run(leave_one_by_one())["seed:7"] < 0, "it is measured anew"


def test_a_request_during_the_end_of_an_abandoned_measure_begins_another(tmp_path: Path):
    speaker = Speaker(first_pause_s=0.02)

    async def ask_in_the_middle() -> dict[str, float]:
        measure = loudness(tmp_path, speaker)
        left = asyncio.create_task(measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), ANONYMOUS_CALLER))
        await asyncio.sleep(0.01)
        left.cancel()
        return await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), ANONYMOUS_CALLER)

    assert asyncio.run(ask_in_the_middle())["seed:7"] < 0


async def test_who_begins_a_measure_pays_it_and_who_cannot_pay_fails_alone(tmp_path: Path):
    quotas = LocalQuotas()
    poor, first, second = (
        Caller(name, quota=Quota(characters_a_day=most, audio_s_a_minute=1e6), quotas=quotas)
        for name, most in (("poor", 1), ("first", 1000), ("second", 1000))
    )

    speaker = Speaker(first_pause_s=0.01)
    measure = loudness(tmp_path, speaker)
    asked = [
        asyncio.create_task(measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), each)) for each in (poor, first, second)
    ]
    refused, *gains_db = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(refused, ApiError)
    assert gains_db[0] == gains_db[1]
    sentence = len(PREVIEW_TEXT["en"])
    assert [await each.characters_today() for each in (poor, first, second)] == [0, sentence, 0]
    speaker.chunks, speaker.pause_s = None, 0.01
    left = asyncio.create_task(measure.gains_db({"seed:8"}, VERSION, SchedulingParams(), second))
    await asyncio.sleep(0.1)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert await second.characters_today() == sentence, "what was begun is paid"
    assert quotas._used("second").audio_due > 0
