"""Tempo: makes a stream faster or slower at the same pitch.

In:    samples (m,) float32, mono, in pieces of any size
Out:   samples float32, the same ones however the input was cut; n samples become round(n / speed)
Owns:  one stream's filter graph and its memory
Never: loudness, formats, threads
"""

import math
from fractions import Fraction

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.error import BlockingIOError as NothingYet
from av.error import EOFError as NothingMore
from av.error import FFmpegError
from numpy.typing import NDArray

from pipeline.audio.framing import Blocks
from pipeline.errors import AudioFault
from pipeline.spec import SAMPLE_RATE
from pipeline.types import SPEED

NEUTRAL_TOKEN = 5

_BLOCK = 512  # samples per call: atempo's output depends on the size of its input
_STAGE_RANGE = 2.0  # one atempo stage slows down to half, and above double it skips samples instead of blending them
# Silence fed after the last sample [samples]: several of atempo's windows (at most 2048 at 24 kHz), because it holds
# them back. Their output is cut off.
_FLUSH = 8 * _BLOCK


def share_speed(speed: float, mode: str) -> tuple[int, float]:
    """Returns how a speed is reached: the token [speed_0 .. 9] for ChatTTS and the stretch of its output.

    Args:
        mode: `stretch`: all by the stretch, exactly. `token`: all by the model, as near as a fifth comes. `auto`: by the
            model within a fifth of its own pace, where it sounds natural, and the rest by the stretch; token k counts
            as a pace of k / 5.
    """
    if mode == "stretch":
        return NEUTRAL_TOKEN, speed
    token = round(NEUTRAL_TOKEN * speed)
    if mode == "token":
        return min(9, max(0, token)), 1.0
    token = min(NEUTRAL_TOKEN + 1, max(NEUTRAL_TOKEN - 1, token))
    return token, SPEED.clamp(speed * NEUTRAL_TOKEN / token)


class Stretch:
    """Time-stretches one stream. Speed 1.0 returns every sample unchanged."""

    def __init__(self, speed: float, sample_rate: int = SAMPLE_RATE) -> None:
        """
        Args:
            speed: 0.25 .. 4.0; 2.0 takes half the time.
            sample_rate: of the samples [Hz].
        """
        assert SPEED.least <= speed <= SPEED.most, f"speed {speed} is not within {SPEED.least} .. {SPEED.most}"
        self._speed = speed
        self._sample_rate = sample_rate
        self._graph = None if speed == 1.0 else _build(speed, sample_rate)
        self._blocks = Blocks(_BLOCK, np.float32)
        self._ready = np.zeros(0, np.float32)  # stretched, not yet given
        self._samples_in = 0  # samples of the caller
        self._pushed = 0  # samples in the graph
        self._samples_out = 0  # samples

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,), returns those that are final; often none, because the filter looks a few blocks ahead.

        Raises:
            AudioFault: the filter failed.
        """
        if self._graph is None:
            return samples
        self._samples_in += len(samples)
        self._push(samples)
        return self._give()

    def finish(self) -> NDArray[np.float32]:
        """Returns the samples that were still in the filter.

        Raises:
            AudioFault: the filter failed, or returned too few.
        """
        if self._graph is None:
            return np.zeros(0, np.float32)
        self._push(np.zeros(_FLUSH + math.ceil(_FLUSH * self._speed), np.float32))
        rest = self._give()
        if self._samples_out != round(self._samples_in / self._speed):
            raise AudioFault(
                f"the time-stretch returned {self._samples_out} samples for {self._samples_in} at speed {self._speed:g}"
            )
        return rest

    def _push(self, samples: NDArray[np.float32]) -> None:
        assert self._graph is not None
        pieces = [self._ready]
        try:
            for block in self._blocks.feed(samples):
                self._graph.push(self._frame(block))
                pieces += _pull(self._graph)
        except FFmpegError as error:
            raise AudioFault(f"the time-stretch failed: {error}") from error
        self._ready = np.concatenate(pieces)

    def _give(self) -> NDArray[np.float32]:
        # At most as many as the input so far gives: the filter's own count is off by up to a window.
        due = round(self._samples_in / self._speed) - self._samples_out
        output, self._ready = self._ready[:due], self._ready[due:]
        self._samples_out += len(output)
        return output

    def _frame(self, block: NDArray[np.float32]) -> AudioFrame:
        frame = AudioFrame.from_ndarray(block[None], format="flt", layout="mono")
        frame.sample_rate = self._sample_rate
        frame.time_base = Fraction(1, self._sample_rate)
        frame.pts = self._pushed
        self._pushed += len(block)
        return frame


def _build(speed: float, sample_rate: int) -> av.filter.Graph:
    stages = max(1, math.ceil(abs(math.log(speed, _STAGE_RANGE))))
    graph = av.filter.Graph()
    last = graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono", time_base=Fraction(1, sample_rate))
    for _ in range(stages):
        stage = graph.add("atempo", f"{speed ** (1 / stages):.12f}")
        last.link_to(stage)
        last = stage
    last.link_to(graph.add("abuffersink"))
    graph.configure()
    return graph


def _pull(graph: av.filter.Graph) -> list[NDArray[np.float32]]:
    """Returns everything the graph has ready, (m,) each."""
    pieces: list[NDArray[np.float32]] = []
    while True:
        try:
            frame = graph.pull()
        except (NothingYet, NothingMore):
            return pieces
        assert isinstance(frame, AudioFrame)
        # A copy: FFmpeg reuses the memory of the array.
        pieces.append(frame.to_ndarray().reshape(-1).astype(np.float32, copy=True))
