"""Windows: which steps a body of audio needs, and when they are known.

In:    how many steps of an utterance are known, and whether it has ended
Out:   Window values, in order; every body has its fixed position and size
Never: numpy, rows of numbers

An utterance of n steps is cut into bodies. Body k covers steps [a, b): its size is chunk_steps[k], the last size
repeating, and depends on k alone, never on load or arrival. So a streamed reply has the same bits as a
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
    """A fixed number of steps, the body with context on both sides, decoded together.

    All positions are steps of the utterance; row i of the window is step first_step + i.
    """

    index: int
    """k: number of the body in the utterance"""
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
    blended: int = 0
    """steps at the body's end that the next body begins with too"""

    @property
    def first_sample(self) -> int:
        """The body's first sample, counted from the beginning of the utterance."""
        return SAMPLES_PER_STEP * self.body_start

    @property
    def num_samples(self) -> int:
        """Samples in the body: the last step of an utterance has one hop less."""
        return SAMPLES_PER_STEP * (self.body_stop - self.body_start) - (HOP if self.is_last else 0)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cuts every utterance into windows."""

    chunk_steps: tuple[int, ...]
    """steps of body 0, 1, ...; the last one repeats"""
    look_ahead: int
    """steps of context on either side"""

    def body(self, index: int) -> tuple[int, int]:
        """Returns steps [a, b) of body `index` of an endless utterance."""
        ramp = len(self.chunk_steps)
        size = self.chunk_steps[min(index, ramp - 1)]
        start = sum(self.chunk_steps[:index]) + max(0, index - ramp) * self.chunk_steps[-1]
        return start, start + size

    def ready(self, index: int, *, known: int, ended: bool) -> Iterator[Window]:
        """Yields the windows from body `index` on that can be decoded now."""
        while window := self.window(index, known=known, ended=ended):
            yield window
            index += 1

    def window(self, index: int, *, known: int, ended: bool) -> Window | None:
        """Returns the window of body `index`; None if it cannot be decoded yet, or lies past the utterance's end.

        Args:
            known: steps of the utterance known so far.
            ended: no more will arrive.
        """
        start, stop = self.body(index)
        # At least one step past the body: otherwise the last body could be taken for an inner one.
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

    def first_needed(self, index: int) -> int:
        """Returns the first step that the window of body `index` sees."""
        return self.body(index)[0] - self.look_ahead

    @property
    def blocks(self) -> tuple[int, ...]:
        """Steps per window: fewer are of no use. At least two sizes; the last one repeats."""
        return self.chunk_steps[0] + max(self.look_ahead, 1), *(self.chunk_steps[1:] or self.chunk_steps)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """All shapes of windows as (rows, steps of a full body), smallest first."""
        return tuple((size + 2 * self.look_ahead, size) for size in sorted(set(self.chunk_steps)))
