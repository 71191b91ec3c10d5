"""Delivery: the segments of one request as one stream, each in its manner, with exact silence where it was asked for.

In:    a segment begins; its samples (m,) float32 at 24 kHz, in pieces of any size
Out:   samples float32, the same ones however the input was cut
Owns:  the time-stretch of the segments under way
Never: the limiter, formats, threads

    segment 0        segment 1 (same speed)   silence_ms        segment 2
    |-- one Stretch, its windows span the joint --|-- zeros --|-- a Stretch of its own --|
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.audio.tempo import MAX_SPEED, MIN_SPEED, Stretch
from pipeline.model.spec import SAMPLE_RATE
from pipeline.types import Segment


class Delivery:
    """One request's stream. A break of N ms is N x 24 zeros, whatever stands around it and however fast it is spoken."""

    def __init__(self, speed: float) -> None:
        """
        Args:
            speed: of the whole request, 0.25 .. 4.0; a segment's rate multiplies it, within the same bounds.
        """
        self._request_speed = speed
        self._speed = speed
        self._stretch = Stretch(speed)
        self._gain = np.float32(1)

    def begin(self, segment: Segment) -> NDArray[np.float32]:
        """What is heard before the segment's first sample: the rest of the one before, the silence.

        Raises:
            EngineFault: the time-stretch failed.
        """
        # Before the stretch, whose windows may reach over a joint.
        self._gain = np.float32(10 ** (segment.manner.gain_db / 20))
        speed = min(MAX_SPEED, max(MIN_SPEED, self._request_speed * segment.manner.rate))
        if not segment.silence_ms and speed == self._speed:
            return np.zeros(0, np.float32)
        rest = self.finish(segment.silence_ms)
        self._speed = speed
        self._stretch = Stretch(speed)
        return rest

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take samples of the segment, give those that are final.

        Raises:
            EngineFault: the time-stretch failed.
        """
        return self._stretch.feed(samples if self._gain == 1 else samples * self._gain)

    def finish(self, silence_ms: int) -> NDArray[np.float32]:
        """The samples that were still inside, and the silence after them."""
        return np.concatenate([self._stretch.finish(), silence(silence_ms)])


def silence(duration_ms: int) -> NDArray[np.float32]:
    """Zeros, (duration_ms x 24,)."""
    return np.zeros(duration_ms * SAMPLE_RATE // 1000, np.float32)
