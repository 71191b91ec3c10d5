"""Stems: the audio of a dialogue as one file per speaker, in one ZIP.

In:    samples in 16 bits, where each speaker speaks
Out:   the bytes of a ZIP, as they are made
Owns:  the names in it
Never: a sample that is in two stems: added up, they are the mix

    mix.wav, 01-Anna.wav, 02-Ben.wav ...    all of one length and in time with each other
"""

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import AudioFormat
from pipeline.books.archive import DATE, Sink

MIX = "mix"
_UNCOMPRESSED = ("wav", "pcm", "ulaw", "alaw")
_UNSAFE = re.compile(r"[^\w-]+")
_MOST_LETTERS = 40  # of a speaker's name in that of a file

Spans = Mapping[str, Sequence[tuple[int, int]]]
"""speaker -> where the speaker is heard: samples [start, stop)"""


def stem_names(speakers: Sequence[str], audio: AudioFormat) -> list[str]:
    """Returns the names of the speakers' files, in order."""
    slugs = (_UNSAFE.sub("_", speaker)[:_MOST_LETTERS].strip("_") or "speaker" for speaker in speakers)
    return [f"{number:02d}-{slug}.{audio.container}" for number, slug in enumerate(slugs, start=1)]


def stems(mix: NDArray[np.int16], spans: Spans, audio: AudioFormat, beside: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yields a ZIP with the mix and the stem of each speaker.

    Args:
        mix: (m,) at the rate of `audio`.
        beside: contents of other files, by their names.

    Raises:
        AudioFault: the encoder failed.
    """
    sink = Sink()
    compression = zipfile.ZIP_DEFLATED if audio.container in _UNCOMPRESSED else zipfile.ZIP_STORED
    with zipfile.ZipFile(sink, "w") as file:
        for name, content in beside.items():
            file.writestr(zipfile.ZipInfo(name, DATE), content)
        file.writestr(zipfile.ZipInfo(f"{MIX}.{audio.container}", DATE), _encoded(mix, audio), compression)
        yield sink.take()
        for name, own in zip(stem_names(list(spans), audio), spans.values(), strict=True):
            file.writestr(zipfile.ZipInfo(name, DATE), _encoded(_alone(mix, own), audio), compression)
            yield sink.take()
    yield sink.take()


def _alone(mix: NDArray[np.int16], spans: Sequence[tuple[int, int]]) -> NDArray[np.int16]:
    alone = np.zeros_like(mix)
    for start, stop in spans:
        alone[start:stop] = mix[start:stop]
    return alone


def _encoded(samples: NDArray[np.int16], audio: AudioFormat) -> bytes:
    return encode_whole(samples.astype(np.float32) / np.float32(32_767), audio)
