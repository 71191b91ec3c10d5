"""Factories: prompts and sequences in one line each."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.engine.engine import Engine
from pipeline.engine.sequence import Sequence, StepStream
from pipeline.types import FinishReason, Head, LoadReport, Prompt, SamplingParams, Segment, StepBlock

WIDTH = 128
"""hidden width where nothing checks it against a model"""


def make_prompt(
    length: int = 12,
    *,
    number: int = 0,
    max_steps: int = 40,
    segment: int = 0,
    head: Head = Head.CODE,
    speaker: NDArray[np.float16] | None = None,
    eos_token: int | None = None,
    text_vocab: int = 60,
) -> Prompt:
    """A prompt of ordinary text ids; another number is another text."""
    random = np.random.default_rng(number)
    ids = np.repeat(random.integers(5, text_vocab, size=(length, 1)), 4, axis=1)
    return Prompt(
        ids=ids,
        text_mask=np.ones(length, dtype=np.bool_),
        head=head,
        segment=Segment("text", segment, is_last=True),
        max_steps=max_steps,
        speaker=speaker,
        speaker_position=None if speaker is None else 1,
        eos_token=eos_token,
    )


def make_speaker(number: int, width: int) -> NDArray[np.float16]:
    return np.random.default_rng([7, number]).standard_normal(width).astype(np.float16)


def make_sequence(*, length: int = 12, max_steps: int = 40, now: float = 0.0, timeout_s: float = 1e6) -> Sequence:
    """A sequence without an engine; needs a running event loop."""
    return Sequence(
        prompt=make_prompt(length, max_steps=max_steps),
        sampling=SamplingParams(),
        stream=StepStream(on_read=lambda: None),
        width=WIDTH,
        max_steps=max_steps,
        deadline=now + timeout_s,
        submitted_at=now,
    )


@dataclass(frozen=True, eq=False)
class Take:
    """All steps of one sequence."""

    hidden: NDArray[np.float32]  # (n, width)
    codes: NDArray[np.int64]  # (n, 4)
    finish: FinishReason

    def equals(self, other: "Take") -> bool:
        """Bit for bit."""
        return (
            self.finish == other.finish
            and np.array_equal(self.codes, other.codes)
            and np.array_equal(self.hidden.view(np.uint32), other.hidden.view(np.uint32))
        )


async def collect(blocks: AsyncIterator[StepBlock]) -> Take:
    """Read a stream to its end, checking that its blocks join without a gap."""
    parts = []
    position = 0
    async for block in blocks:
        assert block.first_step == position, "blocks join without a gap"
        position += len(block.codes)
        parts.append(block)
    finish = parts[-1].finish
    assert finish is not None, "the last block says why"
    assert all(part.finish is None for part in parts[:-1]), "only the last block says why"
    return Take(np.concatenate([part.hidden for part in parts]), np.concatenate([part.codes for part in parts]), finish)


def take(engine: Engine, prompt: Prompt, sampling: SamplingParams) -> Take:
    """One sequence alone in the engine."""
    return asyncio.run(collect(engine.generate(prompt, sampling, timeout_s=100)))


def make_report(replica: str, step_s: float = 0.01, **fields: object) -> LoadReport:
    """The report of an idle engine with four slots, whose steps take equally long with any number of rows."""
    values: dict[str, object] = {
        "usable": 4,
        "running": 0,
        "waiting": 0,
        "waiting_steps": (0.0, 0.0, 0.0),
        "remaining_steps": 0.0,
        "mean_steps": 100.0,
        "fixed_s": step_s,
        "row_s": 0.0,
        "listened_steps": 0,
        "listened_s": 0.0,
        "replica": replica,
        "build": "a",
    }
    return LoadReport(**(values | fields))  # type: ignore[arg-type]
