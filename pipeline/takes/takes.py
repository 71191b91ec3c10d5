"""Takes: generates segments, and rolls one again that ends impossibly early.

In:    prompts, each with the fewest steps in which its text can be spoken
Out:   the steps of one take per segment, and which takes are too short all the same
Owns:  the outcome of the takes of one request
Never: a step of a take that was thrown away; time: one seed rolls the same segments again, alone or among others

A model may draw the end in the middle of a sentence, or at once for a text that it cannot speak. The steps that the first audio
waits for anyway are kept back until the take has outlasted them. A take that ends before, with fewer steps than its text needs,
is replaced by the second draw of the same seed. A later end can only be reported: its audio has been sent.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from pipeline.errors import DeadlineExceeded
from pipeline.protocols import CodeGenerator
from pipeline.types import FinishReason, Prompt, SamplingParams, SeedMode, StepBlock

TOO_SHORT = "too_short"
"""warning: number of segments with fewer steps than speaking their text needs"""
ROLLED_AGAIN = "rolled_again"
"""warning: number of segments whose first take ended too early and was replaced by a second one"""
TAKES = 2
"""attempts of one seed that `steps` may use"""


class Takes:
    """Generates the segments of one request. A segment that ends too early is generated again: a second attempt, with draws of
    its own.
    """

    def __init__(self, generator: CodeGenerator, sampling: SamplingParams, deadline: float, first_steps: Sequence[int]) -> None:
        """
        Args:
            deadline: of the request [monotonic s].
            first_steps: what the vocoder needs for the first samples of segment 0, 1, ..., whatever the load; the last value
                repeats. So many steps may be kept back.
        """
        self.running = asyncio.Event()
        """set as soon as a segment has a step"""
        self._generator = generator
        self._sampling = sampling
        self._deadline = deadline
        self._first_steps = first_steps
        self._counts: Counter[str] = Counter()

    @property
    def warnings(self) -> tuple[tuple[str, int], ...]:
        """Code and number of segments, as far as they have ended."""
        return tuple(sorted(self._counts.items()))

    def count(self, warnings: Mapping[str, int]) -> None:
        """Adds warnings that `steps` counted elsewhere."""
        self._counts.update(warnings)

    async def steps(
        self, prompt: Prompt, *, admitted: bool, attempt: int = 0, counts: Counter[str] | None = None
    ) -> AsyncGenerator[StepBlock, None]:
        """Streams the steps of one segment.

        Args:
            admitted: its request has a segment in the engine already.
            attempt: added to the sampling's own.
            counts: where warnings are counted; None: here.

        Raises:
            DeadlineExceeded, or what the generator raises.
        """
        counts = self._counts if counts is None else counts
        sampling = replace(self._sampling.of(prompt.segment.prosody), attempt=self._sampling.attempt + attempt)
        for take in range(TAKES):
            decisive = self._decisive_steps(prompt) if take == 0 else 0
            opening: list[StepBlock] = []
            ends_early = False
            drawn = replace(sampling, attempt=sampling.attempt + take)
            async with aclosing(self._generate(prompt, drawn, admitted=admitted or take > 0)) as blocks:
                async for block in blocks:
                    self.running.set()
                    ends_early = block.finish is FinishReason.EOS and block.stop < decisive
                    opening.append(block)
                    if block.stop >= decisive:
                        for ready in opening:
                            yield _counted(prompt, ready, counts)
                        opening.clear()
                if not ends_early:
                    for ready in opening:
                        yield _counted(prompt, ready, counts)
                    return
            counts[ROLLED_AGAIN] += 1

    def _generate(self, prompt: Prompt, sampling: SamplingParams, *, admitted: bool) -> AsyncGenerator[StepBlock, None]:
        time_left_s = self._deadline - time.monotonic()
        if time_left_s <= 0:
            raise DeadlineExceeded(f"the request's time was over before segment {prompt.segment.index} began")
        return self._generator.generate(prompt, sampling, timeout_s=time_left_s, admitted=admitted)

    def _decisive_steps(self, prompt: Prompt) -> int:
        """Returns how many steps are kept back, which decide whether a take ends too early."""
        first = self._first_steps[min(prompt.segment.index, len(self._first_steps) - 1)]
        # UPSTREAM draws are ChatTTS's own, which have no second roll.
        return 0 if self._sampling.seed_mode is SeedMode.UPSTREAM else min(prompt.least_steps, first)


def _counted(prompt: Prompt, block: StepBlock, counts: Counter[str]) -> StepBlock:
    """Returns a block of the take that is spoken; counts the take if it is too short."""
    if block.finish is not None and block.stop < prompt.least_steps:
        counts[TOO_SHORT] += 1
    return block
