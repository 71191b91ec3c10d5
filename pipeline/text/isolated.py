"""Isolated: the text front end in a process of its own, so that no text can hold up or bring down a replica.

In:    what protocols.TextFrontend takes
Out:   what it gives; TextTooHard when reading took more than its share of processor time
Owns:  one child process (worker.py), started at the first call and again after it has died
Never: a second question before the first is answered

The limit is processor time, kept by the child itself: a crowded machine makes nothing slower that counts.
"""

import asyncio
import math
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config import TextConfig
from pipeline.errors import SynthesisError, TextTooHard
from pipeline.text.guard import Refined
from pipeline.text.script import Script
from pipeline.types import SpeechPlan, SynthesisRequest, Voice

PROJECT = Path(__file__).resolve().parents[2]
FRAME = 4  # bytes that say how long what follows is


class IsolatedFrontend:
    """protocols.TextFrontend, elsewhere."""

    def __init__(self, checkpoint: Path, config: TextConfig, *, max_prompt: int, max_steps: int) -> None:
        """As LocalTextFrontend; a checkpoint without a tokenizer is noticed at the first call."""
        self._arguments = pickle.dumps((checkpoint, config, max_prompt, max_steps))
        self._cpu_s = config.read_cpu_s
        self._one_at_a_time = asyncio.Lock()
        self._child: Process | None = None

    async def read(self, request: SynthesisRequest) -> Script:
        """See protocols.TextFrontend."""
        script: Script = await self._ask("read", len(request.text), request)
        return script

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        """See protocols.TextFrontend."""
        plan: SpeechPlan = await self._ask("plan", len(request.text), request, voices)
        return plan

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        """See protocols.TextFrontend."""
        replanned: SpeechPlan = await self._ask("replan", len(request.text), request, voices, plan, refined)
        return replanned

    async def compare(self, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined]:
        """See protocols.TextFrontend."""
        characters = sum(len(prompt.segment.text) for prompt in plan.prompts)
        compared: list[Refined] = await self._ask("compare", characters, plan, refined)
        return compared

    async def _ask(self, name: str, characters: int, *arguments: object) -> Any:
        limit_s = self._cpu_s * max(1, math.ceil(characters / 1000))
        # A caller that leaves must not take half an answer with it: the question is finished all the same.
        answer = await asyncio.shield(asyncio.create_task(self._answer(pickle.dumps((limit_s, name, arguments)))))
        if isinstance(answer, SynthesisError):
            raise answer
        return answer

    async def _answer(self, question: bytes) -> Any:
        async with self._one_at_a_time:
            if self._child is None:
                command = (sys.executable, "-m", "pipeline.text.worker")
                self._child = await asyncio.create_subprocess_exec(*command, cwd=PROJECT, stdin=PIPE, stdout=PIPE)
                _send(self._child, self._arguments)
            child = self._child
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                _send(child, question)
                await child.stdin.drain()
                size = int.from_bytes(await child.stdout.readexactly(FRAME))
                return pickle.loads(await child.stdout.readexactly(size))  # noqa: S301  # our own child's own words
            except (asyncio.IncompleteReadError, OSError):
                self._child = None
                await child.wait()
                return TextTooHard("reading this text took too long or failed; send it in smaller pieces", param="input")


def _send(child: Process, data: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(len(data).to_bytes(FRAME) + data)
