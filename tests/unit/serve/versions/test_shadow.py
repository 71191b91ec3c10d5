"""Shadow: another version synthesises a copy, and the two are compared."""

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest

from pipeline.types import AudioChunk, SynthesisRequest
from serve.config.model_versions import ShadowConfig
from serve.versions.shadow import Comparison, Shadow, compare
from tests.support.fakes import sine
from tests.support.model_versions import V1, V2


def shadow_of(room: bool = True, fails: bool = False) -> tuple[Shadow, list[Comparison]]:
    told: list[Comparison] = []

    async def stream(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        assert request.model == V2
        if fails:
            raise RuntimeError("canary")
        yield AudioChunk(2 * sine(5, 0, 36_000), 0, is_last=True)

    return Shadow(stream, lambda share: room, told.append), told


CONFIG = ShadowConfig(version=V2, share=1.0)


REQUEST = SynthesisRequest("r", "x", "nova", model=V1)


def run(shadow: Shadow, times: int = 1) -> None:
    async def go() -> None:
        for _ in range(times):
            shadow.begin(REQUEST, [sine(5, 0, 24_000)], CONFIG)
        while shadow._running:
            await asyncio.gather(*shadow._running)

    asyncio.run(go())


def test_a_shadow_is_compared_in_length_and_loudness():
    shadow, told = shadow_of()
    run(shadow)
    assert told[0].result == "compared"
    assert told[0].duration_ratio == 1.5
    assert told[0].loudness_db == pytest.approx(6.02, abs=0.2)


def test_shadows_are_dropped_before_they_delay_requests():
    shadow, told = shadow_of()
    run(shadow, times=5)
    assert sorted(one.result for one in told) == ["compared", *["dropped"] * 4]
    shadow, told = shadow_of(room=False)
    run(shadow)
    assert [one.result for one in told] == ["dropped"]


def test_a_shadow_that_fails_is_counted_and_nothing_else():
    shadow, told = shadow_of(fails=True)
    run(shadow)
    assert [one.result for one in told] == ["failed"]


def test_a_version_is_no_shadow_of_itself():
    shadow, _ = shadow_of()
    assert shadow.wanted(REQUEST, CONFIG)
    assert not shadow.wanted(SynthesisRequest("r", "x", "nova", model=V2), CONFIG)
    assert not shadow.wanted(REQUEST, None)
    assert compare(V2, [], [], 24_000).loudness_db is None
    assert np.isclose(compare(V2, [sine(1, 0, 10)], [], 24_000).duration_ratio, 0)
