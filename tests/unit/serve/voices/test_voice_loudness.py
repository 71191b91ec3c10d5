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


def heard_by_nobody(seconds: float) -> None:
    """Counts no audio."""


def gains(measure: VoiceLoudness, *names: str) -> dict[str, float]:
    return asyncio.run(measure.gains_db(set(names), VERSION, SchedulingParams(), heard_by_nobody))


def test_a_voice_is_measured_once_and_a_shipped_one_once_for_all_replicas(tmp_path: Path):
    speaker = Speaker()

    async def twice() -> list[dict[str, float]]:
        measure = loudness(tmp_path, speaker)
        asked = (measure.gains_db({"voice-2", "seed:7"}, VERSION, SchedulingParams(), heard_by_nobody) for _ in range(2))
        return [*await asyncio.gather(*asked), await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), heard_by_nobody)]

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
            await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), heard_by_nobody)
        speaker.fails_at = None
        return await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), heard_by_nobody)

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
        told = await asyncio.gather(*(measure.gains_db(names, VERSION, SchedulingParams(), heard_by_nobody) for names in asked))
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
            asyncio.create_task(measure.gains_db({"seed:7", "seed:8"}, VERSION, SchedulingParams(), heard_by_nobody))
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
        return await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), heard_by_nobody)

    assert asyncio.run(leave_one_by_one())["seed:7"] < 0, "it is measured anew"


def test_a_request_during_the_end_of_an_abandoned_measure_begins_another(tmp_path: Path):
    speaker = Speaker(first_pause_s=0.02)

    async def ask_in_the_middle() -> dict[str, float]:
        measure = loudness(tmp_path, speaker)
        left = asyncio.create_task(measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), heard_by_nobody))
        await asyncio.sleep(0.01)
        left.cancel()
        return await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), heard_by_nobody)

    assert asyncio.run(ask_in_the_middle())["seed:7"] < 0


def test_audio_counts_for_the_request_that_began_the_measure(tmp_path: Path):
    speaker = Speaker(chunks=None, pause_s=0.01)
    first: list[float] = []
    second: list[float] = []

    async def ask(count: list[float], measure: VoiceLoudness) -> None:
        await measure.gains_db({"seed:7"}, VERSION, SchedulingParams(), count.append)

    async def leave() -> None:
        measure = loudness(tmp_path, speaker)
        asked = [asyncio.create_task(ask(count, measure)) for count in (first, second)]
        await asyncio.sleep(0.1)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(leave())
    assert first
    assert sum(first) == pytest.approx(0.2 * speaker.produced), "a chunk of the fake has 200 ms"
    assert not second
