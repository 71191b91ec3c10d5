"""Post-processor: joins the segments of one request to one stream, with the audio options of the request.

In:    a segment begins; its samples (m,) float32 at 24 kHz, in pieces of any size
Out:   samples float32 at the request's rate, the same ones however the input was cut
Owns:  the state of every stage, for one request
Never: formats, threads

    each voice's:   denoise, level        each segment's:   trim        one for all:   the rest

    segment -> denoise -> trim -> level -.
    segment -> denoise -> trim -> level -+-> stretch, fall, exact silence -> resample -> limit -> fade -> out
    segment -> denoise -> trim -> level -'

Only the stages that a request needs exist; without any, the samples of the vocoder pass unchanged, but where silence follows:
at the end and before a break the last FALL of them fall, since the model may stop in mid-sound, which is a click. Neighbouring
segments of one speed with no silence between them share one stretch, whose windows span the joint, and nothing falls there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

from pipeline.audio.denoise import Denoiser
from pipeline.audio.limiter import Limiter
from pipeline.audio.loudness import Level
from pipeline.audio.tempo import Stretch
from pipeline.audio.trim import Trim
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.types import SPEED, AudioOptions, AudioReport, Denoise, Segment, SynthesisRequest, Voice

NOTHING = np.zeros(0, np.float32)
FALL = 3 * SAMPLE_RATE // 1000
"""of a sound before silence [samples at 24 kHz]"""

# libsoxr's 20 bits: no error a 16-bit sample could show, at half the delay of its next better filter (39 ms, not 79).
_QUALITY = "HQ"


def resampled_length(samples: int, rate: int, from_rate: int = SAMPLE_RATE) -> int:
    """Returns the length at `rate` of `samples` at `from_rate` [samples]."""
    return (2 * samples * rate + from_rate) // (2 * from_rate)


class Resample:
    """Resamples one stream."""

    def __init__(self, rate: int, from_rate: int = SAMPLE_RATE) -> None:
        """
        Args:
            rate: of the output [Hz].
            from_rate: of the input [Hz].
        """
        self._rate = rate
        self._from_rate = from_rate
        self._stream = soxr.ResampleStream(from_rate, rate, 1, dtype="float32", quality=_QUALITY)
        self._samples_in = 0
        self._samples_out = 0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,), returns those that are final."""
        self._samples_in += len(samples)
        return self._give(self._stream.resample_chunk(samples))

    def finish(self) -> NDArray[np.float32]:
        """Returns the samples that were still in the filter."""
        rest = self._give(self._stream.resample_chunk(np.zeros(0, np.float32), last=True))
        # soxr rounds the length in its own way: off by one sample at most.
        missing = resampled_length(self._samples_in, self._rate, self._from_rate) - self._samples_out
        return np.concatenate([rest, np.zeros(missing, np.float32)])

    def _give(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        due = resampled_length(self._samples_in, self._rate, self._from_rate) - self._samples_out
        output = samples[:due]
        self._samples_out += len(output)
        return output


class Fade:
    """Raises the first `rise` samples and lowers the last `fall`, half a cosine each, or what fits of both."""

    def __init__(self, rise: int, fall: int) -> None:
        self._rise, self._fall = _half_cosine(rise), _half_cosine(fall)[::-1]
        self._risen = 0  # samples of the rise that have been used
        self._pending = NOTHING

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,), returns those that are not among the last `fall`."""
        rise = self._rise[self._risen : self._risen + len(samples)]
        self._risen += len(rise)
        pending = np.concatenate([self._pending, samples[: len(rise)] * rise, samples[len(rise) :]])
        final = max(0, len(pending) - len(self._fall))
        self._pending = pending[final:]
        return pending[:final]

    def finish(self) -> NDArray[np.float32]:
        """Returns the last samples, lowered. What is fed afterwards does not rise."""
        rest, self._pending = self._pending, NOTHING
        return rest * self._fall[len(self._fall) - len(rest) :]


def _half_cosine(length: int) -> NDArray[np.float32]:
    """Returns a rise from 0 to 1, (length,)."""
    return (0.5 - 0.5 * np.cos(np.pi * (np.arange(length) + 0.5) / max(1, length))).astype(np.float32)


class AudioStage(Protocol):
    """Takes samples and returns samples, some of them later. `finish` returns the rest, of the stream or of the segment."""

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]: ...

    def finish(self) -> NDArray[np.float32]: ...


class PostProcessor:
    """Joins one request's segments. A break of N ms is N x 24 zeros, at any speed and between any segments."""

    def __init__(self, request: SynthesisRequest, segments: Sequence[Segment], voices: Mapping[str, Voice]) -> None:
        """
        Args:
            segments: all segments of the request, in order.
            voices: every voice the segments name, and the request's own.
        """
        self._request = request
        self._voices = voices
        self._denoisers: dict[str, Denoiser] = {}
        self._levels: dict[str, Level] = {}
        self._trims: list[Trim] = []
        self._segment_stages: tuple[AudioStage, ...] = ()  # of the present segment
        self._gain = np.float32(1)
        self._speed = request.speed
        self._stretch = Stretch(request.speed)
        self._fall = Fade(0, FALL)
        options = request.audio
        levels = any(voice.gain_db for voice in voices.values()) or any(segment.prosody.gain_db > 0 for segment in segments)
        levels = levels or options.loudness_lufs is not None or options.gain_db != 0
        self._output_stages = _output_stages(options, limited=levels)
        self._vocoded: list[int] = []  # samples of each segment so far
        self._joined = 0  # samples before the present stretch, 24 kHz
        self._stretched_in = 0  # samples that the present stretch has taken
        self.ended = 0
        """where the segment before the present one ended [samples of the reply]; after `finish` the last one"""
        self.began = 0
        """where the present segment begins; after `finish` where the reply ends [samples of the reply]"""

    def begin(self, segment: Segment) -> NDArray[np.float32]:
        """Begins a segment; returns the rest of the one before and the silence between them.

        Raises:
            AudioFault: the time-stretch failed.
        """
        rest = self._stretched(_flush(self._segment_stages))
        self.ended = self._at(self._stretched_in)
        self._vocoded.append(0)
        self._segment_stages = self._stages_for(segment)
        self._gain = np.float32(10 ** (segment.prosody.gain_db / 20))
        # A segment's rate multiplies the request's speed, within the same bounds.
        speed = SPEED.clamp(self._request.speed * segment.prosody.rate)
        if segment.silence_ms or speed != self._speed:
            rest = np.concatenate([rest, self._join(segment.silence_ms, speed, falls=segment.silence_ms > 0)])
        self.began = self._at(self._stretched_in)
        return _through(self._output_stages, rest)

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes samples (m,) of the segment, returns those that are final.

        Raises:
            AudioFault: the time-stretch failed.
        """
        self._vocoded[-1] += len(samples)
        return _through(self._output_stages, self._stretched(_through(self._segment_stages, samples)))

    def finish(self, silence_ms: int) -> NDArray[np.float32]:
        """Ends the stream; returns the samples that were still inside, and the silence after them.

        Raises:
            AudioFault: the time-stretch failed, or returned a wrong length.
        """
        rest = self._stretched(_flush(self._segment_stages))
        self.ended = self._at(self._stretched_in)
        rest = np.concatenate([rest, self._join(silence_ms, self._speed, falls=True)])
        self.began = self._at(0)
        return np.concatenate([_through(self._output_stages, rest), _flush(self._output_stages)])

    def place(self) -> Callable[[int], int]:
        """Returns what maps samples of the present segment, as the vocoder made them, to samples of the reply.

        It is right while the segment lasts, and afterwards; of a quiet edge that was cut, only the beginning is known to it.
        """
        joined, fed, speed = self._joined, self._stretched_in, self._speed
        trim = next((stage for stage in self._segment_stages if isinstance(stage, Trim)), None)

        def of(samples: int) -> int:
            cut = 0 if trim is None else trim.start_samples
            return self._in_reply(joined + round((fed + max(0, samples - cut)) / speed))

        return of

    @property
    def is_light(self) -> bool:
        """True if one second of audio takes only some milliseconds, so that the event loop may do the work itself."""
        return self._request.audio.denoise is Denoise.OFF and not any(
            isinstance(stage, Limiter) for stage in self._output_stages
        )

    @property
    def report(self) -> AudioReport:
        """Report of what was done, complete once the stream is finished."""
        start, end = sum(trim.start_samples for trim in self._trims), sum(trim.end_samples for trim in self._trims)
        return AudioReport(
            # A segment's last step has one hop less, half a step: rounded up it counts.
            steps=sum(math.ceil(samples / SAMPLES_PER_STEP) for samples in self._vocoded),
            trimmed_ms=(round(1000 * start / SAMPLE_RATE), round(1000 * end / SAMPLE_RATE)),
            denoised=any(denoiser.works for denoiser in self._denoisers.values()),
        )

    def _join(self, silence_ms: int, speed: float, *, falls: bool) -> NDArray[np.float32]:
        """Ends the present stretch, which another one follows; returns its last samples and the silence behind them."""
        rest, quiet = self._fall.feed(self._stretch.finish()), silence(silence_ms)
        self._joined += round(self._stretched_in / self._speed) + len(quiet)
        self._stretched_in = 0
        self._speed = speed
        self._stretch = Stretch(speed)
        return np.concatenate([rest, self._fall.finish(), quiet]) if falls else rest

    def _at(self, fed: int) -> int:
        """Returns the place in the reply of the sample after so many that the present stretch has taken."""
        return self._in_reply(self._joined + round(fed / self._speed))

    def _in_reply(self, samples: int) -> int:
        rate = self._request.audio.sample_rate
        return samples if rate == SAMPLE_RATE else resampled_length(samples, rate)

    def _stretched(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        # The gain comes before the stretch, whose windows may reach over a joint.
        self._stretched_in += len(samples)
        return self._fall.feed(self._stretch.feed(samples if self._gain == 1 else samples * self._gain))

    def _stages_for(self, segment: Segment) -> tuple[AudioStage, ...]:
        options = self._request.audio
        name = segment.prosody.voice or self._request.voice
        stages: list[AudioStage] = []
        if options.denoise is not Denoise.OFF:
            stages.append(self._denoisers.setdefault(name, Denoiser(options.denoise)))
        if options.trim and (segment.index == 0 or segment.is_last):
            self._trims.append(Trim(start=segment.index == 0, end=segment.is_last))
            stages.append(self._trims[-1])
        voice = self._voices[name]
        own_db = voice.gain_db if options.loudness_lufs is None else 0.0
        if options.loudness_lufs is not None or own_db + options.gain_db:
            level = Level(options.loudness_lufs, gain_db=own_db + options.gain_db, measured_lufs=voice.loudness_lufs)
            stages.append(self._levels.setdefault(name, level))
        return tuple(stages)


def silence(duration_ms: int) -> NDArray[np.float32]:
    """Returns zeros, (duration_ms x 24,)."""
    return np.zeros(duration_ms * SAMPLE_RATE // 1000, np.float32)


def _output_stages(options: AudioOptions, *, limited: bool) -> tuple[AudioStage, ...]:
    """Returns the stages of the joined segments; the limiter only where a level is changed."""
    stages: list[AudioStage] = []
    if options.sample_rate != SAMPLE_RATE:
        stages.append(Resample(options.sample_rate))
    if limited:
        stages.append(Limiter(options.sample_rate))
    if fade := round(options.fade_ms / 1000 * options.sample_rate):
        stages.append(Fade(fade, fade))
    return tuple(stages)


def _through(stages: tuple[AudioStage, ...], samples: NDArray[np.float32]) -> NDArray[np.float32]:
    for stage in stages:
        samples = stage.feed(samples)
    return samples


def _flush(stages: tuple[AudioStage, ...]) -> NDArray[np.float32]:
    """Returns what is left in all stages, the rest of each passed through those after it."""
    rest = NOTHING
    for stage in stages:
        rest = np.concatenate([stage.feed(rest), stage.finish()])
    return rest
