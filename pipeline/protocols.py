"""Protocols: the three stages and the voices, as the synthesizer sees them.

In:    types
Out:   Protocols
Never: implementations: scripts pass the engine and the vocoder themselves, tests pass fakes, and Ray Serve passes the
       adapters of serve/stages/stage_clients.py
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.types import (
    AudioChunk,
    DecodedAudio,
    DecoderTraits,
    Followed,
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

SpeechStream = Callable[[SynthesisRequest], AsyncGenerator[AudioChunk, None]]
"""a request to its audio, as Synthesizer.stream yields it"""


class VoiceSource(Protocol):
    """Names to voices."""

    def get(self, name: str) -> Voice:
        """Returns the voice of that name, without waiting.

        Raises:
            UnknownVoice
        """
        ...


class TextFrontend(Protocol):
    """Text to prompts."""

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Normalises and splits the text, and accounts for every character.

        Raises:
            InvalidRequest: NoSpeakableText, TextTooHard, ...
        """
        ...

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """Normalises and splits the text: CODE prompts, or TEXT prompts when the request asks for a refine pass.

        Args:
            voices: every voice the request names, by the name it uses.

        Raises:
            InvalidRequest: NoSpeakableText, TextTooLong, ...
        """
        ...

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """Turns the refine pass's text tokens, one array (n,) per segment of `plan`, into CODE prompts.

        A refined text that has no words, or no longer fits a prompt, or that the request's guard refuses, is replaced by
        the text before the pass.

        Raises:
            RefineRejected: it would have been replaced, and the guard is strict.
        """
        ...

    async def compare(self, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined]:
        """Returns every segment of `plan` before and after the refine pass, word by word."""
        ...


class CodeGenerator(Protocol):
    """Prompts to steps."""

    def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """Streams the steps of one segment. Closing the generator frees its slot within one round.

        Args:
            timeout_s: time left for this segment [s].
            admitted: the request already has its first segment in the engine, so this one queues however
                many already wait.

        Raises:
            AtCapacity: at the first item, when no more may wait.
            DeadlineExceeded, ReaderStalled, NonFiniteOutput, EngineDead: at any item.
        """
        ...


class TextFollower(Protocol):
    """Which word each step says."""

    async def follow(
        self, prompt: Prompt, codes: NDArray[np.int64], tokens: tuple[int, int], *, ended: bool
    ) -> Followed | None:
        """Returns where the model looks in a prompt while it speaks.

        The same prompt and codes have the same answer, however often it was asked for a part of them before.

        Args:
            codes: (n, 4), all steps of the segment so far.
            tokens: positions [start, stop) of the prompt among which it looks.
            ended: no step follows.

        Returns:
            None: the checkpoint lists no head that follows the text.
        """
        ...


class RecordingEncoder(Protocol):
    """Recordings to codes."""

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns the codes (n, 4) of a recording (m,), 24 kHz mono, 512 samples per step: a cloned voice's sample."""
        ...


class WaveDecoder(Protocol):
    """Steps to samples. It takes StepBatches or HiddenWindows, as its traits say, and keeps nothing of an utterance."""

    async def traits(self) -> DecoderTraits:
        """Returns what it takes; constant for the lifetime of the decoder."""
        ...

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        """Returns the samples of the window's body: float32 (m,), m = 512 per step, 256 fewer when the window is last."""
        ...

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        """Returns the samples (m,) that the next steps complete, and the state for the batch after them."""
        ...
