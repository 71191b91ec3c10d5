"""Early: chunks of an utterance that are decoded before all steps are known that they depend on (latency: low).

In:    a vocoder's traits
Out:   EarlyChunks, in order; the joined samples of two of them
Owns:  how far the first chunks look ahead, and the join between chunks that looked ahead differently
Never: torch, rows of numbers, time: the schedule depends on the traits alone

An early chunk sounds as if the utterance ended with the last step it waits for. Steps are sampled faster than they are played,
so every chunk can look further ahead than the one before, until nothing it depends on is missing. From there on the samples
are those of an exact stream.

    steps known                20        30              41
    chunk 0       0 ....... 8 ..|
    chunk 1                 8 ....... 16 ..|
    chunk 2                          16 ........... 26 ..|
    blended                 ~~       ~~            ~~

The first samples of a chunk are blended with the end of what the chunk before knew about them, so that no step is audible.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import NDArray

from pipeline.spec import SAMPLES_PER_STEP
from pipeline.types import DecoderTraits
from pipeline.vocoder.incremental.feeding import FINAL_STEPS, MOST_STEPS
from pipeline.vocoder.windowed.windows import Window

REAL_TIME_FACTOR = 0.75  # of a stream at which every chunk is known before the ones ahead of it have been played
# Steps of chunk 0, 1, ... and how far it looks ahead.
EARLY = ((8, 12), (8, 14), (10, 15), (12, 16), (16, 16), (18, 20), (20, 24), (24, 26), (28, 30), (32, 36), (32, 44))
NOTHING = np.zeros(0, np.float32)
BLENDED_STEPS = 1  # of a chunk, with the end of the one before


@dataclass(frozen=True, slots=True)
class EarlyChunk:
    """Steps [start, stop) of an utterance, decoded once `needed` steps are known."""

    start: int
    stop: int
    needed: int
    is_exact: bool
    """no later step affects its samples"""


@dataclass(frozen=True, slots=True)
class EarlySchedule:
    """Cuts every utterance into chunks, the first of which are decoded early."""

    traits: DecoderTraits
    ramp: tuple[tuple[int, int], ...] = EARLY
    """(steps, look-ahead) of the early chunks"""

    def chunks(self) -> Iterator[EarlyChunk]:
        """Yields the chunks of an endless utterance."""
        exact, sizes = self.traits.look_ahead, self.traits.chunk_steps
        later = [size for size in sizes if size >= self.ramp[-1][0]] or [sizes[-1]]
        start = 0
        for size, target in chain(self.ramp, ((size, exact) for size in chain(later, repeat(later[-1])))):
            look_ahead = min(target, exact)
            stop = start + self._fitting(size, is_exact=look_ahead == exact)
            # At least one step past the chunk: otherwise the last one could be taken for an inner one.
            yield EarlyChunk(start, stop, stop + max(look_ahead, 1), is_exact=look_ahead == exact)
            start = stop

    def stops(self) -> Iterator[tuple[int, EarlyChunk | None]]:
        """Yields for each call of an incremental decoder: the step at which it ends, and the chunk that it completes."""
        done = 0
        for chunk in self.chunks():
            early = chunk.needed - FINAL_STEPS if chunk.start == 0 else 0
            for target in (early, chunk.needed) if early >= FINAL_STEPS else (chunk.needed,):
                for stop in range(done + MOST_STEPS, target, MOST_STEPS):
                    yield stop, None
                yield target, chunk if target == chunk.needed else None
                done = target

    @property
    def first_steps(self) -> int:
        """Steps that the first samples take."""
        return next(self.chunks()).needed

    @property
    def blocks(self) -> tuple[int, ...]:
        """Steps per decoder call: fewer are of no use. At least two sizes; the last one repeats."""
        ends = (stop for stop, _ in self.stops()) if self.traits.is_stateful else (chunk.needed for chunk in self.chunks())
        sizes, before = [], 0
        most = len(self.ramp) + len(self.traits.chunk_steps) + 1
        for end, _ in zip(ends, range(most), strict=False):
            sizes.append(end - before)
            before = end
        return tuple(sizes)

    def ready(self, index: int, *, known: int, ended: bool) -> Iterator[Window]:
        """Yields the windows from chunk `index` on that can be decoded now, as windowed/windows.py's Schedule does.

        Their shapes are those of an exact stream; steps past the ones that a chunk needs are outside the window's valid range.
        """
        reach, sizes = self.traits.look_ahead, self.traits.chunk_steps
        for number, chunk in enumerate(islice(self.chunks(), index, None), start=index):
            if known <= chunk.start or (known < chunk.needed and not ended):
                return
            own = chunk.stop - chunk.start
            blended = 0 if chunk.is_exact else min(BLENDED_STEPS, max(0, known - chunk.stop), max(sizes) - own)
            size = min(size for size in sizes if size >= own + blended)
            first_step = chunk.start - reach
            yield Window(
                index=number,
                first_step=first_step,
                rows=size + 2 * reach,
                valid_start=max(first_step, 0),
                valid_stop=min(chunk.needed, chunk.start + size + reach, known),
                body_start=chunk.start,
                body_stop=min(chunk.stop + blended, known),
                is_last=ended and known <= chunk.stop,
                blended=blended,
            )

    def first_needed(self, index: int) -> int:
        """Returns the first step that the window of chunk `index` sees."""
        return next(islice(self.chunks(), index, None)).start - self.traits.look_ahead

    def without(self, count: int) -> "EarlySchedule":
        """Returns the schedule without its first `count` sizes; the last one always remains."""
        return replace(self, ramp=self.ramp[min(count, len(self.ramp) - 1) :])

    def _fitting(self, size: int, *, is_exact: bool) -> int:
        """Returns the size of a chunk that, blended steps included, fits the windows of a decoder that takes windows."""
        if self.traits.is_stateful:
            return size
        return max(1, min(size, max(self.traits.chunk_steps) - (0 if is_exact else BLENDED_STEPS)))


class Joiner:
    """Joins the chunks of one utterance."""

    def __init__(self) -> None:
        self._tail = NOTHING

    def join(self, samples: NDArray[np.float32], tail: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the samples (m,) of a chunk, their beginning blended with the tail of the chunk before.

        Args:
            tail: what this chunk knows of the next one's samples, at most BLENDED_STEPS.
        """
        common = min(len(self._tail), len(samples))
        if common:
            share = np.linspace(0, 1, common + 2, dtype=np.float32)[1:-1]
            blended = self._tail[:common] * (1 - share) + samples[:common] * share
            samples = np.concatenate([blended, samples[common:]])
        self._tail = tail[: BLENDED_STEPS * SAMPLES_PER_STEP]
        return samples


class EarlySamples:
    """The samples of one utterance that are sent before they are settled: before no later step affects them."""

    def __init__(self) -> None:
        self.sent_samples = 0
        """samples in the chunks so far"""
        self._settled = NOTHING  # from `sent_samples` on
        self._unsettled = 0  # samples that were sent before they were settled
        self._joiner = Joiner()

    def settle(self, samples: NDArray[np.float32]) -> None:
        """Appends the next settled samples (m,)."""
        self._settled = self._after_sent(samples)
        self._unsettled -= min(self._unsettled, len(samples))

    def chunk_to(self, stop: int, guessed: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Returns the samples of the chunk that ends at sample `stop`.

        Args:
            guessed: what follows the settled ones if the utterance ended now; None: the chunk is settled.
        """
        size = stop - self.sent_samples
        known = self._settled if guessed is None else self._after_sent(guessed)
        samples = self._joiner.join(known[:size], NOTHING if guessed is None else known[size:])
        self._unsettled += max(0, size - len(self._settled))
        self._settled, self.sent_samples = self._settled[size:], stop
        return samples

    def rest(self) -> NDArray[np.float32]:
        """Returns the samples of the last chunk, all of which are settled."""
        return self._joiner.join(self._settled, NOTHING)

    def _after_sent(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.concatenate([self._settled, samples[self._unsettled :]])
