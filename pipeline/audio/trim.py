"""Trim: cuts the quiet before the first sound of an utterance and after its last one.

In:    the samples of a segment, float32 at 24 kHz, in pieces of any size
Out:   the same samples without the quiet edges
Owns:  quiet that may turn out to be an edge, two seconds of it at most
Never: the quiet between words; a change to any sample that stays

A frame of 10 ms is a sound if it is 9 dB above the quietest frame so far, within -55 .. -42 dBFS: below -55 a frame is always
quiet, above -42 always a sound. Two sounds in a row are speech; 50 ms before the first and 100 ms after the last of them
are kept, for the breath and the weak consonants there.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pipeline.audio.framing import Blocks
from pipeline.spec import SAMPLE_RATE

FRAME = SAMPLE_RATE // 100  # samples: 10 ms
MAX_FRAMES = 200
"""quiet that is held back, at either edge; a beginning that stays quiet for longer is left as it is"""

_ABOVE_FLOOR_DB = 9.0
_QUIET_DBFS, _SOUND_DBFS = -55.0, -42.0
_SPEECH_FRAMES = 2
_LEAD_FRAMES = 5
_TAIL_FRAMES = 10


class Trim:
    """Trims one segment, at its start, its end, or both."""

    def __init__(self, *, start: bool, end: bool) -> None:
        """
        Args:
            start: the segment is the utterance's first one.
            end: it is the last one.
        """
        self._begun = not start  # the beginning is over
        self._spoken = False
        self._end = end
        self._blocks = Blocks(FRAME, np.float32)
        self._pending: list[NDArray[np.float32]] = []  # frames that may be an edge
        self._floor_dbfs = 0.0
        self._sounds = 0  # in a row
        self.start_samples = 0
        """cut at the start [samples]"""
        self.end_samples = 0
        """cut at the end [samples]"""

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,), returns those that are not part of an edge."""
        return _joined(piece for frame in self._blocks.feed(samples) for piece in self._frame(frame))

    def finish(self) -> NDArray[np.float32]:
        """Ends the segment; returns what stays of its end. A segment without any speech is kept whole."""
        rest = self._blocks.rest()  # less than a frame: it is treated like the frame before it
        if self._end and self._spoken and len(self._pending) > _TAIL_FRAMES:
            self.end_samples = (len(self._pending) - _TAIL_FRAMES) * FRAME + len(rest)
            return _joined(self._pending[:_TAIL_FRAMES])
        return _joined([*self._pending, rest])

    def _frame(self, frame: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Takes one frame; returns the frames that are now known to stay."""
        level_dbfs = 10 * np.log10(float(np.mean(np.square(frame, dtype=np.float64))) + 1e-12)
        self._floor_dbfs = min(self._floor_dbfs, level_dbfs)
        sound = level_dbfs > np.clip(self._floor_dbfs + _ABOVE_FLOOR_DB, _QUIET_DBFS, _SOUND_DBFS)
        self._sounds = self._sounds + 1 if sound else 0
        self._pending.append(frame)
        if self._sounds >= _SPEECH_FRAMES:
            self._spoken = True
            if not self._begun:
                self._begun = True
                edge = max(0, len(self._pending) - _SPEECH_FRAMES - _LEAD_FRAMES)
                self.start_samples = edge * FRAME
                self._pending = self._pending[edge:]
        elif not self._begun:
            if len(self._pending) < MAX_FRAMES:
                return []
            self._begun = True
        elif self._end and self._spoken:
            # Quiet, or one sound alone: the end, or a pause between words.
            if len(self._pending) <= MAX_FRAMES:
                return []
            return [self._pending.pop(0)]
        stays, self._pending = self._pending, []
        return stays


def _joined(pieces: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([np.zeros(0, np.float32), *pieces])
