"""Track: the samples of a script in a row, as far as its parts are finished.

In:    a script, how long its finished parts are, their files
Out:   where each part begins; any range of the samples
Never: all samples in memory; samples behind a part that is missing
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline.books.job_files import SAMPLE_BYTES, JobFiles
from pipeline.books.script import Script, samples_of

BLOCK = 1 << 16  # samples that are read at once


class Track:
    """The parts of a script from the first one to the last one before which none is missing."""

    def __init__(self, script: Script, lengths: Mapping[str, int], sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.starts: list[int] = []
        """the first sample of each part, behind its silence"""
        self.lengths: list[int] = []
        """samples of each part"""
        self.samples = 0
        """of all of them"""
        self._runs: list[tuple[int, str | None]] = []  # first sample, and whose samples follow; None: silence
        for part, key in zip(script.parts, script.keys, strict=True):
            if key not in lengths:
                break
            self._runs.append((self.samples, None))
            self.samples += samples_of(part.pause_ms, sample_rate)
            self.starts.append(self.samples)
            self._runs.append((self.samples, key))
            self.lengths.append(lengths[key])
            self.samples += lengths[key]
        self.is_whole = len(self.starts) == len(script.parts)

    @property
    def parts(self) -> int:
        """How many parts it has."""
        return len(self.starts)

    def chapter_starts(self, script: Script) -> list[int]:
        """Returns the first sample of each chapter, behind its silence, as far as they are there; the first begins at 0."""
        starts: list[int] = []
        for part, start in zip(script.parts, self.starts, strict=False):
            if part.chapter == len(starts):
                starts.append(start if starts else 0)
        return starts

    def pcm(self, files: JobFiles, first: int, stop: int) -> Iterator[bytes]:
        """Yields bytes [first, stop) of the samples in 16 bits."""
        size = self.samples * SAMPLE_BYTES
        at, stop = first, min(stop, size)
        run = bisect_right(self._runs, first // SAMPLE_BYTES, key=lambda entry: entry[0]) - 1
        while at < stop:
            begin, key = self._runs[run]
            follows = self._runs[run + 1][0] if run + 1 < len(self._runs) else self.samples
            end = min(stop, follows * SAMPLE_BYTES)
            yield from _silence(end - at) if key is None else samples_in(files, key, at - begin * SAMPLE_BYTES, end - at)
            at, run = max(at, end), run + 1

    def blocks(self, files: JobFiles) -> Iterator[NDArray[np.float32]]:
        """Yields all samples, as an encoder takes them."""
        for piece in self.pcm(files, 0, self.samples * SAMPLE_BYTES):
            yield np.frombuffer(piece, "<i2").astype(np.float32) / np.float32(32_767)


def _silence(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, BLOCK * SAMPLE_BYTES))
        count -= BLOCK * SAMPLE_BYTES


def samples_in(files: JobFiles, key: str, offset: int, count: int) -> Iterator[bytes]:
    """Yields bytes [offset, offset + count) of the samples of a finished part."""
    with files.pcm_file(key).open("rb") as file:
        file.seek(offset)
        while count > 0:
            piece = file.read(min(count, BLOCK * SAMPLE_BYTES))
            if not piece:
                raise EOFError(f"{key}.pcm is shorter than it was")
            count -= len(piece)
            yield piece
