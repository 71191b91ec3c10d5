"""Sequences: number formats, prompts and whole sequences that the sections decode.

In:    an engine, a checkpoint
Out:   Takes: all steps of a sequence
Never: verdicts: those are the sections'
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint, Tensors
from pipeline.engine.engine import Engine
from pipeline.spec import VocoderSize
from pipeline.types import Head, Prompt, SamplingParams, Segment

PROMPT_POSITIONS = 48


@dataclass(frozen=True, slots=True)
class SharedCheckpoint(Checkpoint):
    """A checkpoint whose parts are read and hashed once, for many engines."""

    parts: dict[str, Tensors] = field(default_factory=dict)

    @staticmethod
    def of(checkpoint: Checkpoint, layers: int | None = None) -> "SharedCheckpoint":
        """Returns the checkpoint with its first `layers` layers; None: with all of them."""
        spec = checkpoint.gpt_spec
        shortened = SharedCheckpoint(checkpoint.root, replace(spec, layers=min(layers or spec.layers, spec.layers)))
        shortened.parts["gpt"] = checkpoint.gpt()
        return shortened

    def _part(self, name: str) -> Tensors:
        if name not in self.parts:
            self.parts[name] = getattr(Checkpoint(self.root, self.gpt_spec), name)()
        return self.parts[name]

    def gpt(self) -> Tensors:
        return self._part("gpt")

    def embed(self) -> Tensors:
        return self._part("embed")

    def mel_decoder(self, size: VocoderSize = "full") -> Tensors:
        return self._part("mel_decoder")

    def vocos(self, size: VocoderSize = "full") -> Tensors:
        return self._part("vocos")


@dataclass(frozen=True, slots=True)
class Format:
    """The number formats of an engine."""

    dtype: str
    weights: str = "dtype"
    kv: str = "dtype"

    @property
    def name(self) -> str:
        rounded = " and ".join(part for part in ("weights", "kv") if getattr(self, part) == "int8")
        return f"{rounded} int8" if rounded else self.dtype

    def settings(self, device: str) -> dict[str, object]:
        """Returns the fields of EngineConfig for a device."""
        return {"device": device, "dtype": self.dtype, "weights": self.weights, "kv": self.kv}


FLOAT32, BFLOAT16 = Format("float32"), Format("bfloat16")
EIGHT_BITS = (
    Format("bfloat16", weights="int8"),
    Format("bfloat16", kv="int8"),
    Format("bfloat16", weights="int8", kv="int8"),
)


def decodable(device: str) -> tuple[Format, ...]:
    """Returns the 8-bit formats to check on a device; int8 weights on a CPU have tests of their own."""
    return tuple(how for how in EIGHT_BITS if device == "cuda" or how.weights == "dtype")


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """All steps of one sequence."""

    hidden: NDArray[np.float32]
    codes: NDArray[np.int64]

    def equals(self, other: "Take") -> bool:
        """True if both are equal bit for bit."""
        return np.array_equal(self.codes, other.codes) and self.hidden.tobytes() == other.hidden.tobytes()


def prompt(number: int, width: int, steps: int) -> Prompt:
    """Returns a prompt whose text, voice and length follow from `number`."""
    random = np.random.default_rng(number)
    length = int(random.integers(8, PROMPT_POSITIONS))
    return Prompt(
        ids=np.repeat(random.integers(5, 60, size=(length, 1)), 4, axis=1),
        text_mask=np.ones(length, np.bool_),
        head=Head.CODE,
        segment=Segment("text", 0, is_last=True),
        max_steps=steps,
        speaker=random.standard_normal(width).astype(np.float16),
        speaker_position=1,
    )


async def take(engine: Engine, request: Prompt, sampling: SamplingParams, on_block: Callable[[], None] = lambda: None) -> Take:
    """Decodes one sequence. `on_block` is called after each block."""
    parts = []
    async for block in engine.generate(request, sampling, timeout_s=500, admitted=True):
        parts.append(block)
        on_block()
    return Take(np.concatenate([part.hidden for part in parts]), np.concatenate([part.codes for part in parts]))


def takes(engine: Engine, numbers: list[int], width: int, steps: int) -> list[Take]:
    """Decodes many sequences of exactly `steps` steps at once."""

    async def together() -> list[Take]:
        return await asyncio.gather(
            *(take(engine, prompt(number, width, steps), SamplingParams(seed=number, min_steps=steps)) for number in numbers)
        )

    return asyncio.run(together())
