"""Windows: which steps a body of audio needs, and when they are there.

In:    how many steps of an utterance are known, and whether it has ended
Out:   Window values, in order; every body has its fixed place and size
Owns:  nothing
Never: torch, numpy, rows of numbers

An utterance of n steps is cut into bodies. Body k covers steps [a, b): its size is chunk_steps[k], the last size
repeating, and follows from k alone, never from load or arrival. So a streamed reply holds the same bits as a
buffered one.

                     a - look_ahead        a            b        b + look_ahead
    window                 |---- context --|--- body ---|---- context --|           every window of one size: one shape
    beginning          . . . . . |- known -|--- body ---|---- context --|           steps before 0 do not exist
    end                    |---- context --|- body -|. . . . . . . . . .            steps from n on do not exist
                                                    n

A body can be decoded once b + look_ahead steps are known, or the utterance has ended. Its samples are
[512 a, 512 b); the final body's end at 256 (2n - 1), because n steps give 2n - 1 hops.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.spec import HOP, SAMPLES_PER_STEP


@dataclass(frozen=True, slots=True)
class Window:
    """One body with its context. All places are steps of the utterance; row i of the window is step first_step + i."""

    index: int
    """k: this is the utterance's k-th body"""
    first_step: int
    """negative near the beginning"""
    rows: int
    """steps in the window, existing or not"""
    valid_start: int
    """[valid_start, valid_stop) exist and are known"""
    valid_stop: int
    body_start: int
    body_stop: int
    is_last: bool
    """the utterance ends at body_stop"""

    @property
    def first_sample(self) -> int:
        """Where the body's samples begin, counted from the utterance's first."""
        return SAMPLES_PER_STEP * self.body_start

    @property
    def num_samples(self) -> int:
        """How many samples the body gives: the utterance's last step gives one hop less."""
        return SAMPLES_PER_STEP * (self.body_stop - self.body_start) - (HOP if self.is_last else 0)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How every utterance is cut."""

    chunk_steps: tuple[int, ...]
    """steps of body 0, 1, ...; the last one repeats"""
    look_ahead: int
    """steps of context either side"""

    def body(self, index: int) -> tuple[int, int]:
        """Steps [a, b) of body `index` of an utterance without an end."""
        ramp = len(self.chunk_steps)
        size = self.chunk_steps[min(index, ramp - 1)]
        start = sum(self.chunk_steps[:index]) + max(0, index - ramp) * self.chunk_steps[-1]
        return start, start + size

    def ready(self, index: int, *, known: int, ended: bool) -> Iterator[Window]:
        """The windows from body `index` on that can be decoded now, in order."""
        while window := self.window(index, known=known, ended=ended):
            yield window
            index += 1

    def window(self, index: int, *, known: int, ended: bool) -> Window | None:
        """The window of body `index`, or None while it cannot be decoded, or past the utterance's end.

        Args:
            known: steps of the utterance known so far.
            ended: no more will come.
        """
        start, stop = self.body(index)
        # One step past the body at least, or a body that ends the utterance could be taken for an inner one.
        needed = stop + max(self.look_ahead, 1)
        if known <= start or (known < needed and not ended):
            return None
        first_step = start - self.look_ahead
        return Window(
            index=index,
            first_step=first_step,
            rows=stop + self.look_ahead - first_step,
            valid_start=max(first_step, 0),
            valid_stop=min(stop + self.look_ahead, known),
            body_start=start,
            body_stop=min(stop, known),
            is_last=ended and known <= stop,
        )

    @property
    def blocks(self) -> tuple[int, ...]:
        """Steps from window to window: nothing can be done with fewer. Two sizes at least; the last repeats."""
        return self.chunk_steps[0] + max(self.look_ahead, 1), *(self.chunk_steps[1:] or self.chunk_steps)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The different windows there are: (rows, steps of a full body) each, smallest first."""
        return tuple((size + 2 * self.look_ahead, size) for size in sorted(set(self.chunk_steps)))
