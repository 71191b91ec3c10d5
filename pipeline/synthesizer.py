"""Synthesizer: turns one request into one stream of audio; start reading here.

In:    SynthesisRequest
Out:   AudioChunks, in order, without a gap
Owns:  nothing; a request lives in local variables
Never: the engine or vocoder directly: it calls them through protocols.py

    plan -> [refine, replan] -> segment 0: generate -> decode -> post-process -> chunks
                                segment 1: generate (ahead)  '-> decode ...
                                segment 2: generate (ahead)          '-> ...

Segments are generated in parallel and delivered in order. Later segments are read into memory as they are generated, at
most one step cap of hidden states each, so that none keeps its slot too long or counts as a stalled reader.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.audio.post_processor import PostProcessor
from pipeline.cache.cached_generator import CachedModel
from pipeline.config import SpeechConfig
from pipeline.errors import EngineFault
from pipeline.protocols import CodeGenerator, TextFollower, TextFrontend, VoiceSource, WaveDecoder
from pipeline.takes.rerolls import Rerolls
from pipeline.takes.takes import Takes
from pipeline.text.segment import predicted_steps
from pipeline.timing.timeline import Timeline
from pipeline.types import (
    AudioChunk,
    CacheResult,
    DecoderTraits,
    Latency,
    Prompt,
    Refined,
    SamplingParams,
    SchedulingParams,
    SpeechPlan,
    SpeechText,
    StepBlock,
    SynthesisRequest,
    Voice,
)
from pipeline.vocoder.beside import chunks_of
from pipeline.vocoder.stream import StreamDecoder, blocks_for, first_steps

NOTHING = np.zeros(0, np.float32)

Input = TypeVar("Input")


class Synthesizer:
    """Turns text into audio by means of the three stages."""

    def __init__(
        self,
        frontend: TextFrontend,
        generator: CodeGenerator,
        decoder: WaveDecoder,
        voices: VoiceSource,
        speech_config: SpeechConfig,
        cached: CachedModel | None = None,
        follower: TextFollower | None = None,
    ) -> None:
        """
        Args:
            follower: which word each step says, for requests that ask for the times of words; None: they are estimated.
            cached: the generator behind a cache, for requests that may use it.
        """
        self._frontend = frontend
        self._generator = generator
        self._traits = decoder.traits
        self._decoder = StreamDecoder(decoder)
        self._voices = voices
        self._cached = cached
        self._follower = follower
        self._parallel_segments = speech_config.parallel_segments

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        """Streams the audio of a request. The last chunk has `is_last`; a stream that ends without it has raised.

        Raises:
            SynthesisError: before the first chunk wherever that is possible.
        """
        began = time.monotonic()
        deadline = began + request.timeout_s
        voices = self._voices_of(request)
        plan = await self._frontend.plan(request, voices)
        admitted = False
        cached = None if self._cached is None else self._cached.for_request(request.cache)
        generator = cached or self._generator
        if request.refine is not None:
            refining = await self._with_scheduling(plan.prompts, request, began)
            if cached is not None:
                await cached.check(refining, request.refine.sampling)
            refined = await self._refine(generator, refining, request.refine.sampling, deadline)
            plan = await self._frontend.replan(request, voices, plan, refined)
            admitted = True
        prompts = await self._with_scheduling(plan.prompts, request, began)
        if cached is not None:
            await cached.check(prompts, request.sampling)
        post_processor = PostProcessor(request, [prompt.segment for prompt in prompts], voices)
        traits = await self._traits()
        latencies = latency_of_segments(prompts, request.scheduling.latency, traits)
        takes = Takes(generator, request.sampling, deadline, [first_steps(traits, latency) for latency in latencies])
        spoken = Rerolls(takes, plan.words, self._follower, request.retries)
        prefetcher = SegmentPrefetcher(spoken, prompts, self._parallel_segments, admitted=admitted)
        timeline = Timeline(request, plan.words, self._follower)
        num_samples = first_sample = 0
        pending = NOTHING  # until it is known which words are in it
        pieces = self._decode_segments(plan, post_processor, prefetcher, timeline, prompts)
        async with aclosing(pieces):
            async for samples in pieces:
                num_samples += len(samples)
                pending = np.concatenate([pending, samples]) if len(pending) else samples
                leave, times = timeline.take(num_samples)
                samples, pending = pending[: leave - first_sample], pending[max(0, leave - first_sample) :]
                if len(samples) or times:
                    warnings = () if first_sample else (*plan.warnings, *spoken.warnings)
                    source = CacheResult.BYPASS if cached is None else cached.result
                    is_made = cached is None or cached.has_made
                    yield AudioChunk(
                        samples, first_sample, is_last=False, warnings=warnings, cache=source, is_made=is_made, times=times
                    )
                    first_sample += len(samples)
        report = replace(post_processor.report, coverage=timeline.coverage)
        yield AudioChunk(NOTHING, first_sample, is_last=True, warnings=spoken.warnings, report=report)

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Returns the text as it would be spoken, without any step of the model.

        Raises:
            InvalidRequest
        """
        self._voices_of(request)
        return await self._frontend.read(request)

    async def refine(self, request: SynthesisRequest) -> list[Refined]:
        """Runs the refine pass alone and returns every segment before and after it.

        Raises:
            SynthesisError
        """
        assert request.refine is not None, "the request has a refine pass"
        deadline = time.monotonic() + request.timeout_s
        plan = await self._frontend.plan(request, self._voices_of(request))
        prompts = await self._with_scheduling(plan.prompts, request, time.monotonic())
        refined = await self._refine(self._generator, prompts, request.refine.sampling, deadline)
        return await self._frontend.compare(plan, refined)

    async def _with_scheduling(
        self, prompts: tuple[Prompt, ...], request: SynthesisRequest, began: float
    ) -> tuple[Prompt, ...]:
        """Returns the prompts with the request's scheduling; only the first has the promise, less the time already used."""
        # The steps that the vocoder needs for its first samples.
        traits, skipped = await self._traits(), request.scheduling.skipped_chunk_sizes
        scheduled = []
        for latency in latency_of_segments(prompts, request.scheduling.latency, traits):
            first, blocks = first_steps(traits, latency, skipped), blocks_for(traits, latency, skipped)
            own = replace(request.scheduling, first_audio_s=None, first_steps=first, blocks=blocks, latency=latency)
            scheduled.append(own)
        if request.scheduling.first_audio_s is not None:
            left_s = request.scheduling.first_audio_s - (time.monotonic() - began)
            scheduled[0] = replace(scheduled[0], first_audio_s=left_s)
        if len(prompts) > 1:
            # SegmentPrefetcher starts the other segments when the first one has a step.
            blocks = scheduled[0].blocks
            scheduled[0] = replace(scheduled[0], blocks=(1, blocks[0] - 1, *blocks[1:]))
        return tuple(replace(prompt, scheduling=own) for prompt, own in zip(prompts, scheduled, strict=True))

    def _voices_of(self, request: SynthesisRequest) -> dict[str, Voice]:
        """Returns every voice the request names, by that name."""
        names = {request.voice, *(passage.prosody.voice for passage in request.passages)}
        return {name: self._voices.get(name) for name in names if name is not None}

    async def _decode_segments(
        self,
        plan: SpeechPlan,
        post_processor: PostProcessor,
        prefetcher: "SegmentPrefetcher",
        timeline: Timeline,
        prompts: Sequence[Prompt],
    ) -> AsyncGenerator[NDArray[np.float32], None]:
        """Streams the samples of all segments, each with its prosody, and the silence between them."""
        due = iter(prompts)
        async with aclosing(prefetcher.segments()) as streams:
            async for steps in streams:
                prompt = next(due)
                rest = await _offload_if_heavy(post_processor, post_processor.begin, prompt.segment)
                watched = timeline.begin(prompt, steps, post_processor.ended, post_processor.began, post_processor.place())
                yield rest
                async with aclosing(self._chunks(watched, prompt.scheduling, await self._traits())) as chunks:
                    async for chunk in chunks:
                        yield await _offload_if_heavy(post_processor, post_processor.feed, chunk.samples)
        rest = await _offload_if_heavy(post_processor, post_processor.finish, plan.closing_silence_ms)
        timeline.finish(post_processor.ended, post_processor.began)
        yield rest

    def _chunks(
        self, steps: AsyncGenerator[StepBlock, None], scheduling: SchedulingParams, traits: DecoderTraits
    ) -> AsyncGenerator[AudioChunk, None]:
        """Streams the audio of a segment, which comes with its steps or is decoded here."""
        if traits.is_beside_engine:
            return chunks_of(steps)
        skipped = scheduling.skipped_chunk_sizes
        return self._decoder.chunks(steps, traits, latency=scheduling.latency, skipped_chunk_sizes=skipped)

    async def _refine(
        self, generator: CodeGenerator, prompts: tuple[Prompt, ...], sampling: SamplingParams, deadline: float
    ) -> list[NDArray[np.int64]]:
        """Runs the refine pass and returns the text tokens (n,) of every segment."""
        refined = []
        takes = Takes(generator, sampling, deadline, (0,))
        prefetcher = SegmentPrefetcher(takes, prompts, self._parallel_segments, admitted=False)
        async with aclosing(prefetcher.segments()) as segments:
            async for steps in segments:
                refined.append(np.concatenate([block.codes[:, 0] async for block in steps]))
        return refined


def latency_of_segments(prompts: Sequence[Prompt], latency: Latency, traits: DecoderTraits) -> list[Latency]:
    """Returns the latency of each segment: low only for those that a listener may wait for.

    Segments are generated side by side, so an exact one is no later once the text before it takes as long as its first samples.
    """
    latencies, before = [], 0
    for prompt in prompts:
        latencies.append(latency if before < first_steps(traits) else Latency.EXACT)
        before += predicted_steps(prompt.segment.text)
    return latencies


async def _offload_if_heavy(
    post_processor: PostProcessor, work: Callable[[Input], NDArray[np.float32]], value: Input
) -> NDArray[np.float32]:
    """Returns work(value), computed in a thread if it is heavy, so that the event loop can serve other streams."""
    return work(value) if post_processor.is_light else await asyncio.to_thread(work, value)


class SegmentPrefetcher:
    """Generates the segments of one request, several at a time, and yields them in order."""

    def __init__(self, takes: Takes | Rerolls, prompts: tuple[Prompt, ...], parallel: int, *, admitted: bool) -> None:
        self._takes = takes
        self._prompts = prompts
        self._parallel = parallel
        self._admitted = admitted

    async def segments(self) -> AsyncGenerator[AsyncGenerator[StepBlock, None], None]:
        """Yields one stream of blocks per segment. Closing this closes them all."""
        queues: list[asyncio.Queue[StepBlock | Exception | None]] = [asyncio.Queue() for _ in self._prompts]
        tasks: list[asyncio.Task[None]] = []
        try:
            for index in range(len(self._prompts)):
                for following in range(len(tasks), min(index + self._parallel, len(self._prompts))):
                    tasks.append(asyncio.create_task(self._generate_into(following, queues[following])))
                yield _blocks(queues[index])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _generate_into(self, index: int, queue: asyncio.Queue[StepBlock | Exception | None]) -> None:
        """Generates one segment into its queue; an error goes into the queue too, and None when nothing follows."""
        try:
            if index > 0 and not self._admitted:
                # The first segment decides admission: no other one takes a slot before it.
                await self._takes.running.wait()
            async with aclosing(self._takes.steps(self._prompts[index], admitted=self._admitted or index > 0)) as steps:
                async for block in steps:
                    queue.put_nowait(block)
        except Exception as error:
            queue.put_nowait(error)
        finally:
            queue.put_nowait(None)


async def _blocks(queue: asyncio.Queue[StepBlock | Exception | None]) -> AsyncGenerator[StepBlock, None]:
    """Yields the blocks of one segment.

    Raises:
        EngineFault: no more steps come, and none of them was the last. Otherwise the error in the queue.
    """
    finished = False
    while not finished:
        item = await queue.get()
        if item is None:
            raise EngineFault("the steps of a segment stopped before its end, without a reason")
        if isinstance(item, Exception):
            raise item
        yield item
        finished = item.finish is not None
