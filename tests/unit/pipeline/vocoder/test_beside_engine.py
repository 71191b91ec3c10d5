"""A model that decodes what it generates, with the demo voice: the bytes of a vocoder of its own, alone, in a crowd, cached."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from pipeline.cache.cache import CodeCache
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.key import Kept
from pipeline.config import PipelineConfig, SpeechConfig
from pipeline.synthesizer import Synthesizer
from pipeline.types import (
    CacheControl,
    CacheMode,
    CacheResult,
    DecoderTraits,
    Head,
    Latency,
    Prompt,
    RefineParams,
    SamplingParams,
    SchedulingParams,
    StepBlock,
    SynthesisRequest,
)
from pipeline.vocoder.beside import with_samples
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import Vocoder
from serve.commands.say import LocalPipeline, open_pipeline

pytestmark = pytest.mark.slow

TEXTS = ("The answer came late. Nobody was surprised, and nobody said a word about it. Then we all went home.", "Yes.")


class DecodingEngine:
    """An engine with its vocoder beside it, as an acoustic replica has one."""

    def __init__(self, local: LocalPipeline) -> None:
        self.local = local
        self.decoder = StreamDecoder(local.vocoder)

    def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        steps = self.local.engine.generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted)
        if prompt.head is not Head.CODE:
            return steps
        scheduling = prompt.scheduling
        return with_samples(steps, self.decoder, latency=scheduling.latency, skipped_chunk_sizes=scheduling.skipped_chunk_sizes)


class Traits:
    """Of that vocoder, which nobody else may ask to decode anything."""

    def __init__(self, vocoder: Vocoder) -> None:
        self.vocoder = vocoder

    async def traits(self) -> DecoderTraits:
        return replace(await self.vocoder.traits(), is_beside_engine=True)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=["auto", "windows"])
def local(loop: asyncio.Runner, request: pytest.FixtureRequest) -> Iterator[LocalPipeline]:
    config = PipelineConfig.model_validate({"checkpoint": "demo", "engine": {"slots": 4}, "vocoder": {"method": request.param}})
    opened = open_pipeline(config)
    yield loop.run(opened.__aenter__())
    loop.run(opened.__aexit__(None, None, None))


def asked(text: str, seed: int, **fields: object) -> SynthesisRequest:
    return SynthesisRequest("id", text, voice="default", sampling=SamplingParams(seed=seed), **fields)


async def heard(synthesizer: Synthesizer, request: SynthesisRequest) -> tuple[np.ndarray, CacheResult]:
    async with aclosing(synthesizer.stream(request)) as stream:
        chunks = [chunk async for chunk in stream]
    return np.concatenate([chunk.samples for chunk in chunks]), chunks[0].cache


def test_the_bytes_are_those_of_a_vocoder_of_its_own(loop, local):
    engine, parts = DecodingEngine(local), (Traits(local.vocoder), local.voices, SpeechConfig())
    beside = Synthesizer(local.frontend, engine, *parts)
    model = CachedModel(engine, CodeCache(1 << 24), kept=Kept.SAMPLES, fingerprint="")
    cached = Synthesizer(local.frontend, engine, *parts, model)
    # The same seed with either latency has its own samples, and its own entry of the cache.
    ways = [SchedulingParams(latency=latency) for latency in Latency]
    requests = [asked(text, seed, scheduling=way) for seed, text in enumerate(TEXTS) for way in ways]

    async def crowd() -> list[tuple[np.ndarray, CacheResult]]:
        return await asyncio.gather(*(heard(beside, request) for request in requests))

    expected = [loop.run(heard(local.synthesizer, request))[0] for request in requests]
    for (samples, _), alone in zip(loop.run(crowd()), expected, strict=True):
        assert np.array_equal(samples, alone)
    keeping = CacheControl(CacheMode.DEFAULT)
    for request, alone in zip(requests, expected, strict=True):
        for result in (CacheResult.MISS, CacheResult.HIT):
            samples, found = loop.run(heard(cached, replace(request, cache=keeping)))
            assert np.array_equal(samples, alone)
            assert found is result


def test_a_refined_text_is_decoded_too(loop, local):
    request = asked("That was good.", 5, refine=RefineParams())
    beside = Synthesizer(local.frontend, DecodingEngine(local), Traits(local.vocoder), local.voices, SpeechConfig())
    assert np.array_equal(loop.run(heard(beside, request))[0], loop.run(heard(local.synthesizer, request))[0])
