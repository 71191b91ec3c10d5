"""Encode: turns float32 samples into the bytes of a container, one encoder per stream.

In:    samples (m,) float32 in [-1, 1], mono, in pieces of any size
Out:   bytes, the same ones however the samples were cut
Owns:  one stream's header state, its incomplete codec frame and its FFmpeg encoder
Never: loudness, speed, threads

What a decoder gets back, in samples at the stream's rate:

wav pcm flac ulaw alaw opus   exactly what went in (opus: through its own pre-skip and end position; a reply of less than
                              60 ms at 6 kbit/s may lack up to 24 samples)
mp3, whole                    what went in, where the decoder reads the LAME tag, as all current ones do; FFmpeg's adds up to 46
                              samples of silence to some lengths
mp3, streamed                 1105 samples of encoder and decoder delay, then what went in, silence to the frame's end (1152)
aac                           1024 samples of encoder delay, then what went in, up to one frame (1024) of silence
"""

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Protocol, Self

import av
import numpy as np
from av.audio.stream import AudioStream
from av.codec.context import Flags
from av.error import FFmpegError
from av.stream import Disposition
from numpy.typing import NDArray

from pipeline.audio.formats import AudioFormat
from pipeline.audio.framing import Blocks
from pipeline.audio.labels import FileLabels, Picture, picture_of, plain
from pipeline.errors import AudioFault, NonFiniteOutput

# Written where a container has a place for it. No date and no version: bytes depend on the samples alone.
MARK = "AI-generated speech, made with ChatTTS by chattts-serve"
UNKNOWN_SIZE = 0xFFFFFFFF  # in a WAV header: players read to the end of the stream
_FULL_SCALE = 32_767
_SAMPLE_BYTES = 2


@cache
def _ulaw_table() -> NDArray[np.uint8]:
    """Returns the byte of each 16-bit sample, by its bits: (65536,)."""
    code = ~np.arange(256) & 0xFF
    magnitude = ((((code & 15) << 3) + 132) << (code >> 4 & 7)) - 132
    return _nearest(np.where(code & 128, -magnitude, magnitude))


@cache
def _alaw_table() -> NDArray[np.uint8]:
    """Returns the byte of each 16-bit sample, by its bits: (65536,)."""
    code = np.arange(256) ^ 0x55
    exponent, mantissa = code >> 4 & 7, code & 15
    magnitude = np.where(exponent == 0, (mantissa << 4) + 8, ((mantissa << 4) + 264) << np.maximum(exponent - 1, 0))
    return _nearest(np.where(code & 128, magnitude, -magnitude))


def _nearest(levels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns for each 16-bit sample the byte with the nearest of the 256 levels; zero is +0."""
    order = np.argsort(levels, kind="stable")
    borders = (levels[order][:-1] + levels[order][1:]) / 2
    samples = np.arange(65_536).astype(np.uint16).view(np.int16)
    return order[np.searchsorted(borders, samples, side="right")].astype(np.uint8)


COMPANDED = {"ulaw": _ulaw_table, "alaw": _alaw_table}
"""container -> its table"""
WAV_CODES = {"alaw": 6, "ulaw": 7}


@dataclass(frozen=True, slots=True)
class _Codec:
    """FFmpeg's names and options of a container."""

    muxer: str
    codec: str
    sample_format: str
    muxer_options: dict[str, str] = field(default_factory=dict)
    has_cover: bool = False
    has_vorbis_comments: bool = False
    """chapters are comments, which FFmpeg would write up to a second late"""


_CODECS = {
    "mp3": _Codec("mp3", "libmp3lame", "s16p", {"id3v2_version": "3"}, has_cover=True),
    # Of FFmpeg's muxers for this format, the one that takes a cover; the index at the front, so that players begin at once.
    "m4b": _Codec("mp4", "aac", "fltp", {"movflags": "+faststart", "brand": "M4B "}, has_cover=True),
    # A page every 60 ms (in microseconds): the muxer's own second would add to the latency.
    "opus": _Codec("ogg", "libopus", "s16", {"page_duration": "60000"}, has_vorbis_comments=True),
    # Clusters of 60 ms: a browser's MediaSource plays them as they come.
    "webm": _Codec("webm", "libopus", "s16", {"cluster_time_limit": "60"}),
    "aac": _Codec("adts", "aac", "fltp"),
    # The muxer would begin with 8 KiB reserved for tags.
    "flac": _Codec("flac", "flac", "s16", {"metadata_header_padding": "0"}, has_cover=True, has_vorbis_comments=True),
}
# Bit-exact muxing leaves out the random Ogg serial number, dates and version strings.
# The frame with the length, and the duration with the index, come first and are only known last.
_STREAMED = {"mp3": {"write_xing": "0"}, "webm": {"live": "1"}}
_DETERMINISTIC = {"fflags": "+bitexact", "flush_packets": "1"}


def encode_whole(samples: NDArray[np.float32], audio: AudioFormat) -> bytes:
    """Returns a complete file, with exact sizes in its header.

    Args:
        samples: at the format's rate.

    Raises:
        AudioFault: the encoder failed.
        NonFiniteOutput: the samples hold NaN or infinity.
    """
    with Encoder(audio, streamed=False) as encoder:
        encoder.feed(samples)
        return encoder.finish()


class Encoder:
    """Encodes one stream. Use it with `with`, or close it: it holds an FFmpeg encoder."""

    def __init__(
        self, audio: AudioFormat, *, streamed: bool = True, file: Path | None = None, labels: FileLabels | None = None
    ) -> None:
        """
        Args:
            streamed: bytes are returned as soon as they are final, and headers state no size; else all
                bytes come from finish() and sizes are exact.
            file: of a compressed format, not streamed: where the bytes are written in place of being returned.
            labels: of a compressed format: what the file says about itself.
        """
        self._writer: _Writer
        assert (file is None and labels is None) or (audio.container in _CODECS and not streamed), (
            "only compressed whole files are written"
        )
        if audio.container in _CODECS:
            self._writer = _FfmpegWriter(audio, streamed=streamed, file=file, labels=labels or FileLabels())
        else:
            code = audio.container.removesuffix("_wav")
            table = COMPANDED[code]() if code in COMPANDED else None
            wav_rate = audio.sample_rate if audio.container.endswith("wav") else None
            self._writer = _PlainWriter(table, WAV_CODES.get(code, 1), wav_rate, streamed=streamed)
        self._open = True

    def feed(self, samples: NDArray[np.float32]) -> bytes:
        """Takes samples (m,) and returns the bytes that are final; b"" when none are.

        Raises:
            NonFiniteOutput: the samples hold NaN or infinity; nothing of them reaches the encoder.
            AudioFault: the encoder failed.
        """
        assert self._open, "the stream has ended"
        return self._writer.feed(to_int16(samples))

    def finish(self) -> bytes:
        """Returns the bytes after the last sample. The encoder is closed afterwards."""
        assert self._open, "the stream has ended"
        self._open = False
        try:
            return self._writer.finish()
        finally:
            self._writer.close()

    def close(self) -> None:
        """Releases the encoder, finished or not."""
        self._open = False
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def to_int16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """Clip to [-1, 1] and round to the nearest of 65,535 levels."""
    if not np.isfinite(samples).all():
        raise NonFiniteOutput("the audio holds NaN or infinity; it was not encoded")
    return np.rint(np.clip(samples, -1.0, 1.0) * _FULL_SCALE).astype(np.int16)


class _Writer(Protocol):
    """int16 samples to bytes."""

    def feed(self, samples: NDArray[np.int16]) -> bytes: ...

    def finish(self) -> bytes: ...

    def close(self) -> None: ...


class _PlainWriter:
    """Writes samples one by one, after a WAV header if `wav_rate` is given."""

    def __init__(self, table: NDArray[np.uint8] | None, code: int, wav_rate: int | None, *, streamed: bool) -> None:
        """
        Args:
            table: one byte for each sample, G.711, the telephone's code; None: 16 bits, little-endian.
            code: of the samples in a WAV header.
        """
        self._table = table
        self._code = code
        self._wav_rate = wav_rate
        self._streamed = streamed
        self._begun = False
        self._held = bytearray()

    def feed(self, samples: NDArray[np.int16]) -> bytes:
        plain = samples.astype("<i2") if self._table is None else self._table[samples.view(np.uint16)]
        if self._streamed:
            return self._begin(UNKNOWN_SIZE) + plain.tobytes()
        self._held += plain.tobytes()
        return b""

    def finish(self) -> bytes:
        content = bytes(self._held)
        self._held.clear()
        return self._begin(UNKNOWN_SIZE if self._streamed else len(content)) + content

    def close(self) -> None:
        self._held.clear()

    def _begin(self, size: int) -> bytes:
        if self._begun or self._wav_rate is None:
            return b""
        self._begun = True
        return wav_header(self._wav_rate, size, code=self._code)


def wav_header(sample_rate: int, size: int, *, code: int = 1, marked: bool = False) -> bytes:
    """Returns the WAV header of mono samples, 44 bytes: small players take all that is behind them for samples.

    Args:
        size: bytes of the samples, or UNKNOWN_SIZE.
        code: 1, of 16-bit samples, or one of WAV_CODES.
        marked: whether `wav_trailer` follows the samples.
    """
    width = _SAMPLE_BYTES if code == 1 else 1
    rest = (
        size if size == UNKNOWN_SIZE else size + 36 + len(wav_trailer(size) if marked else b"")
    )  # without "RIFF" and this number itself
    shape = struct.pack("<IHHIIHH", 16, code, 1, sample_rate, sample_rate * width, width, 8 * width)
    return b"RIFF" + struct.pack("<I", rest) + b"WAVEfmt " + shape + b"data" + struct.pack("<I", size)


def wav_trailer(size: int) -> bytes:
    """Returns what stands behind so many bytes of samples: MARK in a LIST of INFO, on an even place."""
    comment = MARK.encode() + b"\0" * (2 - len(MARK) % 2)  # ends with a zero
    info = b"INFOICMT" + struct.pack("<I", len(comment)) + comment
    return b"\0" * (size % 2) + b"LIST" + struct.pack("<I", len(info)) + info


def chapter_comments(chapters: Sequence[tuple[str, int, int]], sample_rate: int) -> dict[str, str]:
    """Returns chapters (title, first sample, stop) as Vorbis comments, which have their beginnings in milliseconds."""
    comments = {}
    for number, (title, first, _) in enumerate(chapters):
        seconds, ms = divmod(1000 * first // sample_rate, 1000)
        comments[f"CHAPTER{number:03d}"] = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}"
        comments[f"CHAPTER{number:03d}NAME"] = plain(title)
    return comments


class _Pipe:
    """Output of a muxer that must not seek."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def write(self, content: bytes) -> int:
        self._buffer += content
        return len(content)

    def take(self) -> bytes:
        content = bytes(self._buffer)
        self._buffer.clear()
        return content


class _FfmpegWriter:
    """Passes samples through an FFmpeg encoder and muxer, in frames of the codec's own size."""

    def __init__(self, audio: AudioFormat, *, streamed: bool, file: Path | None, labels: FileLabels) -> None:
        codec = _CODECS[audio.container]
        options = codec.muxer_options | (_STREAMED.get(audio.container, {}) if streamed else {})
        self._sample_rate = audio.sample_rate
        self._sink: io.BytesIO | _Pipe | None = _Pipe() if streamed else io.BytesIO() if file is None else None
        self._position = 0
        target = self._sink or str(file)
        self._container = av.open(target, "w", format=codec.muxer, options=_DETERMINISTIC | options)
        # ID3v2 or Vorbis comments; ADTS has no place for any.
        self._container.metadata.update({"comment": MARK, **labels.tags})
        if codec.has_vorbis_comments:
            self._container.metadata.update(chapter_comments(labels.chapters, audio.sample_rate))
        else:
            second = Fraction(1, audio.sample_rate)
            self._container.set_chapters(
                [
                    {"id": at, "start": first, "end": stop, "time_base": second, "metadata": {"title": plain(title)}}
                    for at, (title, first, stop) in enumerate(labels.chapters)
                ]
            )
        stream = self._container.add_stream(codec.codec, rate=audio.sample_rate)
        assert isinstance(stream, AudioStream)
        self._stream = stream
        self._context = self._stream.codec_context
        self._context.layout = "mono"
        self._context.format = codec.sample_format
        self._context.flags |= Flags.bitexact
        if audio.kbps is not None:
            self._context.bit_rate = 1000 * audio.kbps
        self._context.open()
        if labels.cover and codec.has_cover and (picture := picture_of(labels.cover)):
            self._show(picture, labels.cover)
        self._blocks = Blocks(self._context.frame_size, np.int16)

    def feed(self, samples: NDArray[np.int16]) -> bytes:
        try:
            for frame in self._blocks.feed(samples):
                self._encode(frame)
        except FFmpegError as error:
            raise AudioFault(f"the {self._context.name} encoder failed: {error}") from error
        return self._sink.take() if isinstance(self._sink, _Pipe) else b""

    def finish(self) -> bytes:
        try:
            if len(rest := self._blocks.rest()):
                self._encode(rest)
            self._container.start_encoding()  # a stream without any sample still has its header
            self._container.mux(self._stream.encode(None))
            self._container.close()  # writes the trailer, and corrects the header where the sink can seek
        except FFmpegError as error:
            raise AudioFault(f"the {self._context.name} encoder failed: {error}") from error
        if isinstance(self._sink, _Pipe):
            return self._sink.take()
        return b"" if self._sink is None else self._sink.getvalue()

    def close(self) -> None:
        try:
            self._container.close()
        except FFmpegError as error:
            raise AudioFault(f"the {self._context.name} encoder did not close: {error}") from error

    def _show(self, picture: Picture, content: bytes) -> None:
        """Adds a cover."""
        stream = self._container.add_mux_stream(picture.codec, width=picture.width, height=picture.height)
        stream.disposition = Disposition.attached_pic
        self._container.start_encoding()
        packet = av.Packet(content)
        packet.stream = stream
        packet.pts = packet.dts = 0
        self._container.mux(packet)

    def _encode(self, samples: NDArray[np.int16]) -> None:
        """Encodes one frame; the last one of a stream may be short."""
        is_float = self._context.format.name == "fltp"
        values = (samples / np.float32(_FULL_SCALE + 1)).astype(np.float32) if is_float else samples
        frame = av.AudioFrame.from_ndarray(values[None], format=self._context.format.name, layout="mono")
        frame.sample_rate = self._sample_rate
        frame.time_base = Fraction(1, self._sample_rate)
        frame.pts = self._position
        self._position += len(samples)
        self._container.mux(self._stream.encode(frame))
