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
from serve.config.app_config import VoicesConfig
from serve.config.model_versions import versions_of
from serve.voices.voice_loudness import VoiceLoudness
from tests.support.fakes import Speaker, make_voices
from tests.support.voice_routes import CATALOGUE, WIDTH

(VERSION,) = versions_of(PipelineConfig(), {})


def loudness(folder: Path, speaker: Speaker, **config: Any) -> VoiceLoudness:
    store = open_store(str(folder / "store.sqlite"))
    return make_voices(
        speaker.stream, VoiceLibrary(VoiceCatalogue.load(CATALOGUE, WIDTH), store), VoicesConfig(**config)
    ).loudness


def gains(measure: VoiceLoudness, *names: str) -> dict[str, float]:
    return asyncio.run(measure.gains_db(set(names), VERSION, SchedulingParams()))


def test_a_voice_is_measured_once_and_a_shipped_one_once_for_all_replicas(tmp_path: Path):
    speaker = Speaker()

    async def twice() -> list[dict[str, float]]:
        measure = loudness(tmp_path, speaker)
        asked = (measure.gains_db({"voice-2", "seed:7"}, VERSION, SchedulingParams()) for _ in range(2))
        return [*await asyncio.gather(*asked), await measure.gains_db({"seed:7"}, VERSION, SchedulingParams())]

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
            await measure.gains_db({"seed:7"}, VERSION, SchedulingParams())
        speaker.fails_at = None
        return await measure.gains_db({"seed:7"}, VERSION, SchedulingParams())

    assert asyncio.run(fail_then_measure())["seed:7"] < 0


def test_without_a_target_nothing_is_measured(tmp_path: Path):
    speaker = Speaker()
    assert gains(loudness(tmp_path, speaker, loudness_lufs=None), "seed:7") == {}
    assert not speaker.requests
