"""Feeding: which steps each call of an incremental vocoder decodes.

In:    the sizes of chunks, the vocoder's look-ahead
Out:   the steps at which the calls end, in order
Never: numpy, rows of numbers

Chunk k covers steps [a, b). It is complete with the call that ends at step b + look_ahead. The ends of calls
depend on k alone, never on load or arrival. They affect latency only: the samples have the same bits however steps are cut.

    steps known    0            28            56  60  68  76 ...
    calls          |-------------|-------------|---|---|---|
    chunks                                         0   1   2          of 8 steps each, look_ahead 52

The steps before the first chunk are decoded while they arrive, so that little work is left when the last one is there. If they
fit into one call, they are decoded in one, which is faster than two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise, repeat, takewhile

EARLY_STEPS = 28  # of a call before the first chunk; smaller calls cost more per step
FINAL_STEPS = 4  # of the call that completes the first chunk: its time adds to the first audio
MOST_STEPS = 32  # most steps of any other call: another stream's first chunk may have to wait for it


@dataclass(frozen=True, slots=True)
class Feeding:
    """Cuts every utterance into calls."""

    chunk_steps: tuple[int, ...]
    """steps of chunk 0, 1, ...; the last one repeats"""
    look_ahead: int
    """steps that must be known after a chunk's last one"""

    def stops(self) -> Iterator[tuple[int, bool]]:
        """Yields for each call of an endless utterance: the step at which it ends, and whether it completes a chunk."""
        first = self.look_ahead + self.chunk_steps[0]
        if first > MOST_STEPS:
            begun = first - FINAL_STEPS
            short = begun % EARLY_STEPS
            for stop in range(short if short >= FINAL_STEPS else short + EARLY_STEPS, begun + 1, EARLY_STEPS):
                yield stop, False
        yield first, True
        begun = first
        for size in chain(self.chunk_steps[1:], repeat(self.chunk_steps[-1])):
            for stop in range(begun + MOST_STEPS, begun + size, MOST_STEPS):
                yield stop, False
            begun += size
            yield begun, True

    @property
    def blocks(self) -> tuple[int, ...]:
        """Steps per call: fewer are of no use. At least two sizes; the last one repeats."""
        grown = self.look_ahead + sum(self.chunk_steps) + self.chunk_steps[-1]
        stops = takewhile(lambda stop: stop <= grown, (stop for stop, _ in self.stops()))
        return tuple(stop - before for before, stop in pairwise((0, *stops)))

    def calls(self, fed: int, *, known: int, ended: bool) -> Iterator[tuple[int, bool]]:
        """Yields (end, completes a chunk) of every call that is possible now.

        When the utterance has ended, the last call ends with it, even if it has no steps of its own.

        Args:
            fed: the step at which the previous call ended.
            known: steps known so far.
            ended: no more will arrive.
        """
        if known == 0:
            return
        for stop, ends_chunk in self.stops():
            if stop >= known and ended:
                yield known, True
            if stop > known or (stop == known and ended):
                return
            if stop > fed:
                yield stop, ends_chunk
