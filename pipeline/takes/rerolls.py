"""Rerolls: speaks a segment again whose words were swallowed or repeated, for requests that ask for it.

In:    the takes of a request, the words of its segments
Out:   the steps of the best take of each segment
Owns:  how many segments were spoken again
Never: a take chosen by chance: one seed has the same takes, and the first of the best ones is spoken

Whether a word is missing is known at the end of a take, so a segment is sent when its takes have ended. Where a further take
fails, for want of time or of an entry in the cache, the best one before it is spoken, and a warning says so: these bytes may
differ from those of another day.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import numpy as np

from pipeline.errors import SynthesisError
from pipeline.protocols import TextFollower
from pipeline.takes.coverage import coverage_of
from pipeline.takes.takes import TAKES, Takes
from pipeline.types import Coverage, Prompt, SpokenWord, StepBlock

RETRIED = "retried"
"""warning: takes that were not spoken, because another one of their segment has more of its words"""
RETRY_FAILED = "retry_failed"
"""warning: segments whose further take failed, so that the best one before it is spoken"""


class Rerolls:
    """The segments of one request, each spoken up to `retries` times more."""

    def __init__(
        self, takes: Takes, words: Sequence[Sequence[SpokenWord]], follower: TextFollower | None, retries: int
    ) -> None:
        self._takes = takes
        self._words = words
        self._follower = follower
        self._retries = retries
        self._retried = self._failed = 0

    @property
    def running(self) -> asyncio.Event:
        """Set as soon as a segment has a step."""
        return self._takes.running

    @property
    def warnings(self) -> tuple[tuple[str, int], ...]:
        """Code and number, as far as the segments have ended."""
        counts = ((RETRIED, self._retried), (RETRY_FAILED, self._failed))
        return (*self._takes.warnings, *(count for count in counts if count[1]))

    def steps(self, prompt: Prompt, *, admitted: bool) -> AsyncGenerator[StepBlock, None]:
        """Streams the steps of one segment, as Takes.steps does."""
        if self._retries:
            return self._best_steps(prompt, admitted=admitted)
        return self._takes.steps(prompt, admitted=admitted)

    async def _best_steps(self, prompt: Prompt, *, admitted: bool) -> AsyncGenerator[StepBlock, None]:
        best: tuple[Coverage | None, list[StepBlock], Counter[str]] | None = None
        for retry in range(self._retries + 1):
            counts: Counter[str] = Counter()
            again = self._takes.steps(prompt, admitted=admitted or retry > 0, attempt=retry * TAKES, counts=counts)
            try:
                async with aclosing(again):
                    blocks = [block async for block in again]
            except SynthesisError:
                if best is None:
                    raise
                self._failed += 1
                break
            coverage = await self._coverage(prompt, blocks)
            if best is None or (coverage is not None and best[0] is not None and coverage.share > best[0].share):
                best = coverage, blocks, counts
            self._retried += retry > 0
            if coverage is None or coverage.share == 1.0:
                break
        assert best is not None
        self._takes.count(best[2])
        for block in best[1]:
            yield block

    async def _coverage(self, prompt: Prompt, blocks: Sequence[StepBlock]) -> Coverage | None:
        """Returns how much of a segment a take has; None: nobody can tell."""
        index = prompt.segment.index
        words = self._words[index] if index < len(self._words) else ()
        if self._follower is None or not words or any(start >= stop for start, stop in (word.tokens for word in words)):
            return None
        codes = np.concatenate([block.codes for block in blocks])
        tokens = words[0].tokens[0], int(prompt.text_mask.sum())
        followed = await self._follower.follow(prompt, codes, tokens, ended=True)
        return None if followed is None else coverage_of(words, followed)
