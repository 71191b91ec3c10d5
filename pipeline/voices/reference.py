"""Reference: decodes an uploaded recording within limits, and checks that it is good enough for a cloned voice.

In:    the bytes of a WAV, FLAC, OGG or MP3 file
Out:   Reference: 24 kHz mono and its measurements; or ReferenceRejected with every reason
Never: a file's name, a network, torch, FFmpeg (it guesses formats, and some of them read other files)

`python -m pipeline.voices.reference` runs it in a separate process, with limits on memory and time: bytes on standard
input, a line of JSON and float32 samples on standard output. A decoder that crashes ends only that process.
"""

import io
import json
import resource
import sys
import warnings
from dataclasses import asdict, dataclass

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from pipeline.errors import ReferenceRejected, UnsupportedFormat
from pipeline.spec import SAMPLE_RATE
from pipeline.voices.measure import loudness_lufs
from pipeline.voices.vad import FRAME, SPEECH, VAD_RATE, speech_probabilities

MIN_S, MAX_S = 3.0, 30.0
MIN_RATE, MAX_RATE = 8_000, 192_000  # Hz
MAX_CHANNELS = 2
BLOCK_FRAMES = 65_536  # decoded at a time: decoding stops at the limit, whatever length the header states

MIN_SPEECH_S = 2.0
MIN_SPEECH_SHARE = 0.4
MIN_SNR_DB = 10.0
MIN_LOUDNESS_LUFS = -45.0
CLIPPED_LEVEL = 0.999
MAX_CLIPPED_SHARE = 0.002
QUIET_QUANTILE = 0.05  # of the frames' power: the noise of a recording without a pause

MEMORY_LIMIT = 2 << 30  # bytes of address space
CPU_LIMIT_S = 20

# libsndfile's name of the container -> first bytes of its files. Formats are recognised by these bytes, never by a name.
MAGIC = {"WAV": (b"RIFF", b"RF64"), "FLAC": (b"fLaC",), "OGG": (b"OggS",), "MP3": (b"ID3",)}
CONTAINERS = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3"})
MP3_SYNC = 0xFFE0  # the first 11 bits of an MPEG audio frame


@dataclass(frozen=True, slots=True)
class Report:
    """Measurements of a recording."""

    container: str
    seconds: float
    speech_s: float
    snr_db: float
    loudness_lufs: float | None
    clipped_share: float


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A recording that may become a voice."""

    samples: NDArray[np.float32]  # (m,) mono, 24 kHz
    report: Report


def read_reference(content: bytes) -> Reference:
    """Decodes and checks a recording.

    Raises:
        UnsupportedFormat: none of the four containers.
        ReferenceRejected: too long, too short, damaged, or not good enough; with every reason.
    """
    container = sniff(content)
    samples, rate = _decode(content)
    return judge(samples, rate, container)


def sniff(content: bytes) -> str:
    """Returns the container, by its first bytes."""
    for container, beginnings in MAGIC.items():
        if content.startswith(beginnings):
            return container
    if len(content) > 1 and int.from_bytes(content[:2], "big") & MP3_SYNC == MP3_SYNC:
        return "MP3"
    raise UnsupportedFormat("the recording is not a WAV, FLAC, OGG or MP3 file", param="audio_sample")


def judge(samples: NDArray[np.float32], rate: int, container: str) -> Reference:
    """Checks a recording (m,) against every limit."""
    clipped_share = float(np.mean(np.abs(samples) >= CLIPPED_LEVEL))
    probabilities = speech_probabilities(_resample(samples, rate, VAD_RATE))
    is_speech = probabilities >= SPEECH
    mono = _resample(samples, rate, SAMPLE_RATE)
    seconds = len(mono) / SAMPLE_RATE
    speech_s = float(is_speech.sum()) * FRAME / VAD_RATE
    report = Report(
        container=container,
        seconds=round(seconds, 3),
        speech_s=round(min(speech_s, seconds), 3),
        snr_db=round(_snr_db(mono, is_speech), 1),
        loudness_lufs=loudness_lufs(mono),
        clipped_share=round(clipped_share, 5),
    )
    reasons = _reasons(report)
    if reasons:
        raise ReferenceRejected("; ".join(reasons), param="audio_sample")
    return Reference(mono, report)


def _decode(content: bytes) -> tuple[NDArray[np.float32], int]:
    """Returns mono samples, decoded in blocks up to the limit, and the file's rate."""
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate, channels = file.samplerate, file.channels
            if file.format not in CONTAINERS:
                raise UnsupportedFormat("the recording is not a WAV, FLAC, OGG or MP3 file", param="audio_sample")
            if not MIN_RATE <= rate <= MAX_RATE:
                raise _rejected(f"sample rate {rate} Hz, allowed are {MIN_RATE} to {MAX_RATE}")
            if channels > MAX_CHANNELS:
                raise _rejected(f"{channels} channels, allowed are 1 and {MAX_CHANNELS}")
            blocks, frames = [], 0
            while frames <= MAX_S * rate:
                block = file.read(BLOCK_FRAMES, dtype="float32", always_2d=True)
                if not len(block):
                    break
                if not np.isfinite(block).all():
                    raise _rejected("samples that are not finite")
                blocks.append(block.mean(axis=1))
                frames += len(block)
    except soundfile.SoundFileError as error:
        raise _rejected("the file is damaged: it cannot be decoded") from error
    if frames > MAX_S * rate:
        raise _rejected(f"longer than {MAX_S:g} s, allowed are {MIN_S:g} to {MAX_S:g} s")
    if frames < MIN_S * rate:
        raise _rejected(f"{frames / rate:.1f} s long, allowed are {MIN_S:g} to {MAX_S:g} s")
    return np.concatenate(blocks), rate


def _rejected(reason: str) -> ReferenceRejected:
    return ReferenceRejected(reason, param="audio_sample")


def _resample(samples: NDArray[np.float32], rate: int, to: int) -> NDArray[np.float32]:
    resampled: NDArray[np.float32] = soxr.resample(samples, rate, to, quality="HQ")
    return resampled


def _snr_db(samples: NDArray[np.float32], is_speech: NDArray[np.bool_]) -> float:
    """Returns the power of the frames with speech over that of the others [dB]."""
    frame = FRAME * SAMPLE_RATE // VAD_RATE
    frames = min(len(is_speech), len(samples) // frame)
    power = np.square(samples[: frames * frame].reshape(frames, frame), dtype=np.float64).mean(axis=1) + 1e-12
    speech = is_speech[:frames]
    if not speech.any():
        return 0.0
    # Frames beside speech contain its beginnings and ends, so pauses count from the second frame on.
    near = speech.copy()
    near[1:] |= speech[:-1]
    near[:-1] |= speech[1:]
    noise = power[~near].mean() if (~near).sum() >= 3 else np.quantile(power, QUIET_QUANTILE)
    return float(10 * np.log10(max(power[speech].mean() / noise, 1e-3)))


def _reasons(report: Report) -> list[str]:
    reasons = []
    if report.speech_s < MIN_SPEECH_S:
        reasons.append(f"{report.speech_s:.1f} s of speech found, at least {MIN_SPEECH_S:g} s are needed")
    elif report.speech_s < MIN_SPEECH_SHARE * report.seconds:
        reasons.append(
            f"speech in {report.speech_s / report.seconds:.0%} of the recording, at least {MIN_SPEECH_SHARE:.0%} are needed: "
            "cut the pauses"
        )
    if report.loudness_lufs is None or report.loudness_lufs < MIN_LOUDNESS_LUFS:
        reasons.append(f"too quiet: at least {MIN_LOUDNESS_LUFS:g} LUFS are needed")
    if report.clipped_share > MAX_CLIPPED_SHARE:
        reasons.append(f"{report.clipped_share:.1%} of the samples are clipped: record it with less gain")
    if report.speech_s >= MIN_SPEECH_S and report.snr_db < MIN_SNR_DB:
        reasons.append(f"speech is {report.snr_db:.0f} dB above the noise, at least {MIN_SNR_DB:g} dB are needed")
    return reasons


def main() -> int:
    """Checks one recording: exit status 0 with the samples or with a refusal; any other is a crash."""
    warnings.simplefilter("ignore")
    content = sys.stdin.buffer.read()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    try:
        reference = read_reference(content)
    except (ReferenceRejected, UnsupportedFormat) as error:
        answer, samples = {"refused": type(error).__name__, "message": error.message}, b""
    else:
        answer, samples = asdict(reference.report), reference.samples.astype("<f4").tobytes()
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
