"""StageTimings: what one reply spent where, told by whoever stands between the spine and its three stages.

In:    the calls of one request to the text front end, the generator and the decoder
Out:   StageTimings: the figures of Server-Timing and of the log line
Owns:  the StageTimings of the running reply, one a task (ContextVar)
Never: Ray, a client's text
"""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.protocols import CodeGenerator, TextFrontend, WaveDecoder
from pipeline.types import (
    DecodedAudio,
    DecoderTraits,
    Head,
    HiddenWindow,
    Prompt,
    Refined,
    SamplingParams,
    SpeechPlan,
    SpeechText,
    StepBatch,
    StepBlock,
    SynthesisRequest,
    Voice,
)

Fields = dict[str, str | int | float | bool]


@dataclass(slots=True)
class StageTimings:
    """One reply's way through the stages; None: it never came so far."""

    text_s: float | None = None
    """the answer of the text front end, rewriting included"""
    queue_s: float | None = None
    """the first segment waited for a slot"""
    gpt_s: float | None = None
    """from its slot to its first steps"""
    vocoder_s: float | None = None
    """the first call of the vocoder that gave samples"""
    segments: int = 0
    steps: int = 0
    vocoder_calls: int = 0
    cache: str = ""
    """where the first segment came from: hit, miss, joined, bypass"""
    finish: dict[str, int] = field(default_factory=dict)
    """why segments ended: how many"""

    def server_timing(self) -> str:
        """The stages that were passed, as entries of Server-Timing."""
        stages = (("text", self.text_s), ("queue", self.queue_s), ("gpt", self.gpt_s), ("vocoder", self.vocoder_s))
        return "".join(f"{name};dur={1000 * took_s:.1f}, " for name, took_s in stages if took_s is not None)

    def figures(self) -> Fields:
        """What a log line says of them."""
        seconds = {"text_s": self.text_s, "queue_s": self.queue_s, "gpt_s": self.gpt_s, "vocoder_s": self.vocoder_s}
        return {
            **({"cache": self.cache} if self.cache else {}),
            "segments": self.segments,
            "steps": self.steps,
            "vocoder_calls": self.vocoder_calls,
            **{f"ended_by_{reason}": count for reason, count in sorted(self.finish.items())},
            **{name: round(took_s, 4) for name, took_s in seconds.items() if took_s is not None},
        }


CURRENT: ContextVar[StageTimings | None] = ContextVar("chattts_stages", default=None)


def current_timings() -> StageTimings:
    """The StageTimings of the reply this task works for; of nobody where there is none."""
    return CURRENT.get() or StageTimings()


class TimedFrontend:
    """protocols.TextFrontend that notes how long the text took and how many segments it has."""

    def __init__(self, frontend: TextFrontend) -> None:
        self._frontend = frontend

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """See protocols.TextFrontend."""
        return await self._frontend.read(request)

    async def compare(self, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined]:
        """See protocols.TextFrontend."""
        return await self._frontend.compare(plan, refined)

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """See protocols.TextFrontend."""
        began = time.perf_counter()
        return self._noted(await self._frontend.plan(request, voices), began)

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """See protocols.TextFrontend."""
        began = time.perf_counter()
        return self._noted(await self._frontend.replan(request, voices, plan, refined), began)

    @staticmethod
    def _noted(plan: SpeechPlan, began: float) -> SpeechPlan:
        stages = current_timings()
        stages.text_s = (stages.text_s or 0.0) + time.perf_counter() - began
        stages.segments = len(plan.prompts)
        return plan


class TimedGenerator:
    """protocols.CodeGenerator that counts steps, and times the first spoken segment."""

    def __init__(self, generator: CodeGenerator) -> None:
        self._generator = generator

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """See protocols.CodeGenerator."""
        stages, began = current_timings(), time.perf_counter()
        spoken = prompt.head is Head.CODE
        async with aclosing(self._generator.generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted)) as blocks:
            async for block in blocks:
                if spoken:
                    stages.steps += len(block.codes)
                    if block.admission is not None and prompt.segment.index == 0:
                        stages.queue_s = block.admission.waited_s
                        stages.gpt_s = max(time.perf_counter() - began - block.admission.waited_s, 0.0)
                    if block.finish is not None:
                        stages.finish[block.finish] = stages.finish.get(block.finish, 0) + 1
                yield block


class TimedDecoder:
    """protocols.WaveDecoder that counts calls and times the first that gave samples."""

    def __init__(self, decoder: WaveDecoder) -> None:
        self._decoder = decoder

    async def traits(self) -> DecoderTraits:
        """See protocols.WaveDecoder."""
        return await self._decoder.traits()

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """See protocols.WaveDecoder."""
        began = time.perf_counter()
        samples = await self._decoder.decode(window)
        self._note(samples, began)
        return samples

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        """See protocols.WaveDecoder."""
        began = time.perf_counter()
        decoded = await self._decoder.feed(batch)
        self._note(decoded.samples, began)
        return decoded

    @staticmethod
    def _note(samples: NDArray[np.float32], began: float) -> None:
        stages = current_timings()
        stages.vocoder_calls += 1
        if stages.vocoder_s is None and len(samples):
            stages.vocoder_s = time.perf_counter() - began
