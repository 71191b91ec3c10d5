"""Protocols: what the spine needs, and nothing about who provides it.

In a script the engine and the vocoder stand behind these themselves, in tests small fakes do, under Ray Serve
the adapters of serve/remote/remote_stages.py.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.types import (
    DecodedAudio,
    DecoderTraits,
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


class VoiceSource(Protocol):
    """Names to voices."""

    def get(self, name: str) -> Voice:
        """The voice of that name; never waits.

        Raises:
            UnknownVoice
        """
        ...


class TextFrontend(Protocol):
    """Text to prompts."""

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Normalise and split the text, and say what became of every character.

        Raises:
            InvalidRequest: NoSpeakableText, TextTooHard, ...
        """
        ...

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """Normalise and split the text: CODE prompts, or TEXT prompts when the request asks for a refine pass.

        Args:
            voices: every voice the request names, by the name it uses.

        Raises:
            InvalidRequest: NoSpeakableText, TextTooLong, ...
        """
        ...

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """Turn the refine pass's text tokens, one array (n,) a segment of `plan`, into CODE prompts.

        A refined text that has nothing to say, or no longer fits a prompt, or that the request's guard refuses, gives way
        to the text it was made from.

        Raises:
            RefineRejected: it would have given way, and the guard is strict.
        """
        ...

    async def compare(self, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined]:
        """What the refine pass made of every segment of `plan`, word by word."""
        ...


class CodeGenerator(Protocol):
    """Prompts to steps."""

    def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """Stream the steps of one segment. Closing the generator frees its slot within one round.

        Args:
            timeout_s: time left for this segment.
            admitted: the request already has its first segment in the engine, so this one queues however
                full the waiting room is.

        Raises:
            AtCapacity: at the first item, when the waiting room is full.
            DeadlineExceeded, ReaderStalled, NonFiniteOutput, EngineDead: at any item.
        """
        ...


class RecordingEncoder(Protocol):
    """Recordings to codes."""

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """The codes (n, 4) of a recording (m,), 24 kHz mono, 512 samples a step: a cloned voice's sample."""
        ...


class WaveDecoder(Protocol):
    """Steps to samples. It takes StepBatches or HiddenWindows, as its traits say, and keeps nothing of an utterance."""

    async def traits(self) -> DecoderTraits:
        """What it takes; the same for as long as it lives."""
        ...

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """The samples of the window's body: float32 (m,), m = 512 a step, 256 fewer when the window is last."""
        ...

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        """The samples the utterance's next steps complete, and what the feed after them must carry."""
        ...
