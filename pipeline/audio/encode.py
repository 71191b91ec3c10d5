"""Encode: float32 samples to the bytes of a container, one encoder a stream.

In:    samples (m,) float32 in [-1, 1], mono, in pieces of any size
Out:   bytes, the same ones however the samples were cut
Owns:  one stream's header state, its incomplete codec frame and its FFmpeg encoder
Never: loudness, speed, threads

What a decoder gets back, in samples at the stream's rate:

wav pcm flac opus   exactly what went in (opus: through its own pre-skip and end position)
mp3                 1105 samples of encoder and decoder delay, then what went in, up to one frame (576) of silence
aac                 1024 samples of encoder delay, then what went in, up to one frame (1024) of silence
"""

import io
import struct
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol, Self

import av
import numpy as np
from av.audio.stream import AudioStream
from av.codec.context import Flags
from av.error import FFmpegError
from numpy.typing import NDArray

from pipeline.errors import EngineFault, NonFiniteOutput, UnsupportedFormat
from pipeline.model.spec import SAMPLE_RATE

CONTAINERS = ("mp3", "opus", "aac", "flac", "wav", "pcm")

UNKNOWN_SIZE = 0xFFFFFFFF  # in a WAV header: the stream ends when it ends
_FULL_SCALE = 32_767
_SAMPLE_BYTES = 2
_ENCODER_RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)  # Hz
_OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)  # Hz; libopus takes no others

_CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
}


@dataclass(frozen=True, slots=True)
class _Codec:
    """How FFmpeg is asked for a container."""

    muxer: str
    codec: str
    sample_format: str
    bits_per_second: int | None = None
    rates: tuple[int, ...] = _ENCODER_RATES
    muxer_options: dict[str, str] = field(default_factory=dict)


_CODECS = {
    # Neither a Xing frame nor ID3: both are written, or corrected, after the end.
    "mp3": _Codec("mp3", "libmp3lame", "s16p", 64_000, muxer_options={"write_xing": "0", "id3v2_version": "0"}),
    # A page every 60 ms (in microseconds): the muxer's own second would be heard as latency.
    "opus": _Codec("ogg", "libopus", "s16", 32_000, _OPUS_RATES, {"page_duration": "60000"}),
    "aac": _Codec("adts", "aac", "fltp", 64_000),
    # The muxer would begin with 8 KiB of room for tags.
    "flac": _Codec("flac", "flac", "s16", muxer_options={"metadata_header_padding": "0"}),
}
# Bit-exact muxing leaves out the random Ogg serial number, dates and version strings.
_DETERMINISTIC = {"fflags": "+bitexact", "flush_packets": "1"}


def content_type(container: str, sample_rate: int = SAMPLE_RATE) -> str:
    """The exact Content-Type of a container: clients choose their decoder by it."""
    _check(container, sample_rate)
    return _CONTENT_TYPES.get(container, f"audio/pcm; rate={sample_rate}; channels=1")


def encode_whole(samples: NDArray[np.float32], container: str, sample_rate: int = SAMPLE_RATE) -> bytes:
    """A complete file, with exact sizes in its header.

    Raises:
        UnsupportedFormat: unknown container, or a rate it does not have.
        EngineFault: samples that are no numbers.
    """
    with Encoder(container, sample_rate, streamed=False) as encoder:
        encoder.feed(samples)
        return encoder.finish()


class Encoder:
    """One stream on its way into a container. Use it with `with`, or close it: it holds an FFmpeg encoder."""

    def __init__(self, container: str, sample_rate: int = SAMPLE_RATE, streamed: bool = True) -> None:
        """
        Args:
            container: one of CONTAINERS.
            sample_rate: of the samples and of the container [Hz].
            streamed: bytes leave as soon as they are made, and headers say that the size is unknown; else all
                bytes come from finish() and sizes are exact.

        Raises:
            UnsupportedFormat: unknown container, or a rate it does not have.
        """
        _check(container, sample_rate)
        self._writer: _Writer
        if container in _CODECS:
            self._writer = _FfmpegWriter(_CODECS[container], sample_rate, seekable=not streamed)
        else:
            header = None if container == "pcm" else sample_rate
            self._writer = _PcmWriter(wav_rate=header, streamed=streamed)
        self._open = True

    def feed(self, samples: NDArray[np.float32]) -> bytes:
        """Take samples (m,) and give the bytes that are final; b"" when nothing is yet.

        Raises:
            NonFiniteOutput: the samples hold NaN or infinity; nothing of them reaches the encoder.
            EngineFault: the encoder failed.
        """
        assert self._open, "the stream has ended"
        return self._writer.feed(to_int16(samples))

    def finish(self) -> bytes:
        """The bytes after the last sample. The encoder is closed afterwards."""
        assert self._open, "the stream has ended"
        self._open = False
        try:
            return self._writer.finish()
        finally:
            self._writer.close()

    def close(self) -> None:
        """Give the encoder back, finished or not."""
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


def _check(container: str, sample_rate: int) -> None:
    if container not in CONTAINERS:
        raise UnsupportedFormat(f"the format must be one of {', '.join(CONTAINERS)}", param="response_format")
    rates = _CODECS[container].rates if container in _CODECS else _ENCODER_RATES
    if sample_rate not in rates:
        allowed = ", ".join(str(rate) for rate in rates)
        raise UnsupportedFormat(f"{container} at {sample_rate} Hz is not made; rates are {allowed}", param="sample_rate")


class _Writer(Protocol):
    """int16 samples to bytes."""

    def feed(self, samples: NDArray[np.int16]) -> bytes: ...

    def finish(self) -> bytes: ...

    def close(self) -> None: ...


class _PcmWriter:
    """Samples as they are, little-endian, after a WAV header where one is wanted."""

    def __init__(self, *, wav_rate: int | None, streamed: bool) -> None:
        self._wav_rate = wav_rate
        self._streamed = streamed
        self._begun = False
        self._held = bytearray()

    def feed(self, samples: NDArray[np.int16]) -> bytes:
        content = samples.astype("<i2").tobytes()
        if self._streamed:
            return self._begin(UNKNOWN_SIZE) + content
        self._held += content
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
        return wav_header(self._wav_rate, size)


def wav_header(sample_rate: int, size: int) -> bytes:
    """The 44 bytes before mono 16-bit samples.

    Args:
        size: bytes of the samples, or UNKNOWN_SIZE.
    """
    rest = size if size == UNKNOWN_SIZE else size + 36  # the header without "RIFF" and this number itself
    byte_rate = sample_rate * _SAMPLE_BYTES
    shape = struct.pack("<IHHIIHH", 16, 1, 1, sample_rate, byte_rate, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES)
    return b"RIFF" + struct.pack("<I", rest) + b"WAVEfmt " + shape + b"data" + struct.pack("<I", size)


class _Pipe:
    """Where a muxer writes when it must not seek."""

    def __init__(self) -> None:
        self._held = bytearray()

    def write(self, content: bytes) -> int:
        self._held += content
        return len(content)

    def take(self) -> bytes:
        content = bytes(self._held)
        self._held.clear()
        return content


class _FfmpegWriter:
    """Samples through an FFmpeg encoder and muxer, in frames of the codec's own size."""

    def __init__(self, codec: _Codec, sample_rate: int, *, seekable: bool) -> None:
        self._sample_rate = sample_rate
        self._sink: io.BytesIO | _Pipe = io.BytesIO() if seekable else _Pipe()
        self._held = np.zeros(0, np.int16)
        self._position = 0
        self._container = av.open(self._sink, "w", format=codec.muxer, options=_DETERMINISTIC | codec.muxer_options)
        stream = self._container.add_stream(codec.codec, rate=sample_rate)
        assert isinstance(stream, AudioStream)
        self._stream = stream
        self._context = self._stream.codec_context
        self._context.layout = "mono"
        self._context.format = codec.sample_format
        self._context.flags |= Flags.bitexact
        if codec.bits_per_second is not None:
            self._context.bit_rate = codec.bits_per_second
        self._context.open()
        self._frame_samples = self._context.frame_size

    def feed(self, samples: NDArray[np.int16]) -> bytes:
        self._held = np.concatenate([self._held, samples])
        whole = len(self._held) - len(self._held) % self._frame_samples
        frames, self._held = self._held[:whole].reshape(-1, self._frame_samples), self._held[whole:]
        try:
            for frame in frames:
                self._encode(frame)
        except FFmpegError as error:
            raise EngineFault(f"the {self._context.name} encoder failed: {error}") from error
        return self._sink.take() if isinstance(self._sink, _Pipe) else b""

    def finish(self) -> bytes:
        try:
            if len(self._held):
                self._encode(self._held)
                self._held = self._held[:0]
            self._container.start_encoding()  # a stream without any sample still has its header
            self._container.mux(self._stream.encode(None))
            self._container.close()  # writes the trailer, and corrects the header where the sink can seek
        except FFmpegError as error:
            raise EngineFault(f"the {self._context.name} encoder failed: {error}") from error
        return self._sink.take() if isinstance(self._sink, _Pipe) else self._sink.getvalue()

    def close(self) -> None:
        try:
            self._container.close()
        except FFmpegError as error:
            raise EngineFault(f"the {self._context.name} encoder did not close: {error}") from error

    def _encode(self, samples: NDArray[np.int16]) -> None:
        """One frame, the stream's last one may be short."""
        is_float = self._context.format.name == "fltp"
        values = (samples / np.float32(_FULL_SCALE + 1)).astype(np.float32) if is_float else samples
        frame = av.AudioFrame.from_ndarray(values[None], format=self._context.format.name, layout="mono")
        frame.sample_rate = self._sample_rate
        frame.time_base = Fraction(1, self._sample_rate)
        frame.pts = self._position
        self._position += len(samples)
        self._container.mux(self._stream.encode(frame))
