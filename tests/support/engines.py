"""Engines: every kind of numbers a CPU decodes with, requests that differ in everything, a runner one round ahead."""

import random
from collections import deque

import pytest

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.cpu_runner import CpuRunner
from pipeline.engine.device import RoundOutput
from pipeline.engine.scheduler import Plan
from pipeline.types import Prompt, SamplingParams, SeedMode
from tests.support.factories import make_prompt, make_speaker
from tests.support.machine import needs_native

NUMERICS = [
    {"decode": "torch", "dtype": "float32"},
    *(
        pytest.param(numerics, marks=pytest.mark.slow)
        for numerics in ({"decode": "torch", "dtype": "bfloat16"}, {"decode": "torch", "dtype": "bfloat16", "kv": "int8"})
    ),
    *(
        pytest.param(numerics, marks=[needs_native, pytest.mark.slow])
        for numerics in (
            {"decode": "native", "dtype": "float32"},
            {"decode": "native", "dtype": "bfloat16"},
            {"decode": "native", "dtype": "bfloat16", "weights": "int8"},
            {"decode": "native", "dtype": "float32", "kv": "int8"},
            {"decode": "native", "dtype": "bfloat16", "weights": "int8", "kv": "int8"},
            {"decode": "native", "dtype": "bfloat16", "weights": "int4", "kv": "int8"},
        )
    ),
]


class Ahead(CpuRunner):
    """A CPU's runner that behaves as a GPU's: a round is launched before the one before it is read."""

    rounds_ahead = 1

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint) -> None:
        super().__init__(config, checkpoint)
        self._outputs: deque[RoundOutput] = deque()

    def launch(self, plan: Plan) -> None:
        super().launch(plan)
        self._outputs.append(super().read())
        assert len(self._outputs) <= 2

    def read(self) -> RoundOutput:
        return self._outputs.popleft()


def distinct(number: int, width: int, **overrides: object) -> tuple[Prompt, SamplingParams]:
    """A request of its own in everything: text, length, voice, seed, sampling values."""
    chance = random.Random(number)
    prompt = make_prompt(
        chance.randint(4, 48),
        number=number,
        max_steps=chance.randint(5, 60),
        speaker=make_speaker(number, width) if number % 3 else None,
    )
    sampling = SamplingParams(
        temperature=chance.choice([0.1, 0.3, 1.0]),
        top_p=chance.choice([0.5, 0.7, 1.0]),
        top_k=chance.choice([3, 20, 626]),
        repetition_penalty=chance.choice([1.0, 1.05, 1.5]),
        seed=chance.randrange(2**32),
        seed_mode=chance.choice(list(SeedMode)),
    )
    return prompt, sampling
