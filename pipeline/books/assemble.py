"""Assemble: one file of the samples of a script.

In:    a track, a format
Out:   a file, the same bytes for the same samples
Never: all samples in memory; a half-written file under its own name
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pipeline.audio.encode import UNKNOWN_SIZE, Encoder, wav_header, wav_trailer
from pipeline.audio.formats import AudioFormat
from pipeline.audio.labels import FileLabels
from pipeline.books.job_files import SAMPLE_BYTES, JobFiles
from pipeline.books.script import Script
from pipeline.books.track import Track

RAW_CONTAINERS = ("wav", "pcm")
"""any range of them is known without encoding"""
M4B = "m4b"
"""of audiobooks: chapters, a cover, an index at the front; only as a finished file"""
CONTAINERS = ("mp3", M4B, "opus", "aac", "flac", *RAW_CONTAINERS)


def assemble(files: JobFiles, script: Script, track: Track, audio: AudioFormat, path: Path) -> None:
    """Writes a complete file, with exact sizes in its header, and with chapters and cover where the format has them.

    Raises:
        AudioFault: the encoder failed.
        OSError: the disk is full, for example.
    """
    draft = path.with_name(f".{os.getpid()}-{id(track)}-{path.name}")  # no other process or thread writes it
    try:
        if audio.container in RAW_CONTAINERS:
            with draft.open("wb") as file:
                file.writelines(raw(files, track, audio, 0, raw_size(track, audio)))
        else:
            with Encoder(audio, streamed=False, file=draft, labels=labels_of(files, script, track)) as encoder:
                for samples in track.blocks(files):
                    encoder.feed(samples)
                encoder.finish()
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def labels_of(files: JobFiles, script: Script, track: Track) -> FileLabels:
    """Returns what the file of a script says about itself; nothing if the script has neither title, chapters nor cover."""
    starts = [*track.chapter_starts(script), track.samples]
    spans = zip(script.chapters, pairwise(starts), strict=False)
    chapters = tuple((title or f"{at}", *span) for at, (title, span) in enumerate(spans, start=1))
    named = chapters if any(script.chapters) else ()
    return FileLabels(script.title, script.author, named, files.cover(script.cover))


def encoded(files: JobFiles, track: Track, audio: AudioFormat) -> Iterator[bytes]:
    """Yields a file as it is encoded, without sizes in its header."""
    with Encoder(audio) as encoder:
        for samples in track.blocks(files):
            if piece := encoder.feed(samples):
                yield piece
        yield encoder.finish()


def raw_size(track: Track, audio: AudioFormat) -> int:
    """Returns the bytes of a wav or pcm file."""
    return sum(map(len, _frame(track, audio))) + track.samples * SAMPLE_BYTES


def raw(files: JobFiles, track: Track, audio: AudioFormat, first: int, stop: int) -> Iterator[bytes]:
    """Yields bytes [first, stop) of a wav or pcm file."""
    (header, trailer), size = _frame(track, audio), track.samples * SAMPLE_BYTES
    if first < len(header):
        yield header[first:stop]
    first, stop = first - len(header), stop - len(header)
    if first < size:
        yield from track.pcm(files, max(0, first), min(size, stop))
    if stop > size:
        yield trailer[max(0, first - size) : stop - size]


def _frame(track: Track, audio: AudioFormat) -> tuple[bytes, bytes]:
    """Returns what stands before the samples of a wav or pcm file, and behind them."""
    size = track.samples * SAMPLE_BYTES
    if audio.container == "pcm":
        return b"", b""
    is_known = size < UNKNOWN_SIZE - 1024
    return (
        wav_header(audio.sample_rate, size if is_known else UNKNOWN_SIZE, marked=is_known),
        wav_trailer(size) if is_known else b"",
    )
