"""Feeding: where an utterance is cut for a vocoder that decodes every step once.

In:    how chunks are cut, how far the vocoder looks ahead
Out:   the steps at which its calls end, in order
Owns:  nothing
Never: torch, numpy, rows of numbers

Chunk k covers steps [a, b); it leaves once b + look_ahead steps are known, with the call that ends there. Where calls end
follows from k alone, never from load or arrival; it is a matter of time, not of bits.

    steps known    0            28            56  60  68  76 ...
    calls          |-------------|-------------|---|---|---|
    chunks                                         0   1   2          of 8 steps each, look_ahead 52

The steps before the first chunk are decoded while they come, so that with its last one little is left to do; unless they
fit into one call, which is done sooner than two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise, repeat, takewhile

EARLY_STEPS = 28  # of a call before the first chunk is due: smaller ones cost more a step
FINAL_STEPS = 4  # of the call that the first chunk leaves with: its time is heard
MOST_STEPS = 32  # of any other call: another stream's first chunk may wait for its end


@dataclass(frozen=True, slots=True)
class Feeding:
    """How every utterance is fed."""

    chunk_steps: tuple[int, ...]
    """steps of chunk 0, 1, ...; the last one repeats"""
    look_ahead: int
    """steps that must be known behind a chunk's last one"""

    def stops(self) -> Iterator[tuple[int, bool]]:
        """The steps at which the calls of an utterance without an end end, and whether a chunk leaves with them."""
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
        """Steps from call to call: nothing can be done with fewer. Two sizes at least; the last repeats."""
        grown = self.look_ahead + sum(self.chunk_steps) + self.chunk_steps[-1]
        stops = takewhile(lambda stop: stop <= grown, (stop for stop, _ in self.stops()))
        return tuple(stop - before for before, stop in pairwise((0, *stops)))

    def calls(self, fed: int, *, known: int, ended: bool) -> Iterator[tuple[int, bool]]:
        """Where the calls end that can be made now, after one that ended at step `fed`, and whether a chunk leaves with them.

        Once an utterance has ended, the last call ends with it, even if it has no steps of its own.
        """
        if known == 0:
            return
        for stop, leaves in self.stops():
            if stop >= known and ended:
                yield known, True
            if stop > known or (stop == known and ended):
                return
            if stop > fed:
                yield stop, leaves
