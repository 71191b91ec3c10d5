"""Formats: the containers, rates and bit rates, under every name that clients use for them.

In:    fields of a request
Out:   AudioFormat
Never: samples, bytes
"""

import re
from dataclasses import dataclass

from pipeline.errors import UnsupportedFormat
from pipeline.spec import SAMPLE_RATE

CONTAINERS = ("mp3", "opus", "webm", "aac", "flac", "wav", "pcm", "ulaw", "alaw")
ALIASES = {"ogg": "opus", "oga": "opus", "ogg_opus": "opus", "wave": "wav", "mpeg": "mp3", "mulaw": "ulaw"}
"""other names of containers"""
IN_WAV = ("ulaw_wav", "alaw_wav")
"""telephones' codes with a WAV header, for protocols that have them; no list shows them"""
SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)  # Hz

_TELEPHONE_RATE = 8_000  # Hz
_OPUS = ("opus", "webm")  # containers of this codec
_OPUS_RATES = (8_000, 16_000, 24_000, 48_000)  # Hz; of SAMPLE_RATES, libopus accepts these
_DEFAULT_KBPS = {"mp3": 64, "opus": 32, "webm": 32, "aac": 64}
# MPEG-1 layer 3, then MPEG-2 (16 kHz and up), then MPEG-2.5, whose last LAME makes. ISO 11172-3, 13818-3.
_MP3_KBPS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_LOW_KBPS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_LOWEST_KBPS = tuple(kbps for kbps in _MP3_LOW_KBPS if kbps <= 64)
_OPUS_KBPS = (6, 256)  # one channel's range: RFC 6716
_AAC_LEAST_KBPS, _AAC_MOST_BITS_PER_SAMPLE = 16, 6  # 6144 bits per frame of 1024 samples: ISO 14496-3

_NAME = re.compile(r"([a-z0-9]{3,4})_([0-9]{4,5})(?:_([0-9]{1,3}))?")


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """Container, rate and bit rate of a reply; only combinations that exist."""

    container: str
    """one of CONTAINERS"""
    sample_rate: int
    """Hz"""
    kbps: int | None
    """kbit/s; None for containers without a choice"""

    @property
    def content_type(self) -> str:
        """The exact Content-Type: clients choose their decoder by it."""
        if self.container in ("pcm", "ulaw", "alaw"):
            return _raw_content_type(self.container, self.sample_rate)
        return f"audio/{_SUBTYPES[self.container]}"


def audio_format(container: str, sample_rate: int | None = None, kbps: int | None = None) -> AudioFormat:
    """Returns a format; None stands for the container's usual rate or bit rate.

    Raises:
        UnsupportedFormat: there is no such container, rate or bit rate; `param` names which.
    """
    container = ALIASES.get(container.lower(), container.lower())
    if container not in (*CONTAINERS, *IN_WAV):
        raise UnsupportedFormat(f"the format must be one of {', '.join(CONTAINERS)}", param="response_format")
    rates = _OPUS_RATES if container in _OPUS else SAMPLE_RATES
    rate = _usual_rate(container) if sample_rate is None else sample_rate
    if rate not in rates:
        raise UnsupportedFormat(f"{container} has {_listed(rates)} Hz, not {rate}", param="sample_rate")
    if container not in _DEFAULT_KBPS:
        if kbps is not None:
            raise UnsupportedFormat(f"{container} has no bit rate to choose: leave bitrate out", param="bitrate")
        return AudioFormat(container, rate, None)
    return AudioFormat(container, rate, _checked_kbps(container, rate, kbps))


def named_format(name: str) -> AudioFormat:
    """Returns a format by its name in ElevenLabs' style: mp3_44100_128, pcm_16000, ulaw_8000, opus_48000_64.

    Raises:
        UnsupportedFormat: no such name or combination.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UnsupportedFormat(
            "output_format is a format, a rate in Hz and, where there is one, kbit/s: mp3_44100_128, pcm_16000, ulaw_8000",
            param="output_format",
        )
    container, rate, kbps = match.groups()
    try:
        return audio_format(container, int(rate), None if kbps is None else int(kbps))
    except UnsupportedFormat as error:
        raise UnsupportedFormat(error.message, param="output_format") from None


_SUBTYPES = {"mp3": "mpeg", "aac": "aac", "flac": "flac", "wav": "wav", "m4b": "mp4"}
_SUBTYPES |= dict.fromkeys(IN_WAV, "wav")
_SUBTYPES |= {"opus": "ogg; codecs=opus", "webm": 'webm; codecs="opus"'}


def _raw_content_type(container: str, rate: int) -> str:
    """Returns the Content-Type of samples without a header; the telephone types mean 8000 Hz, those of RFC 4856 any rate."""
    if container != "pcm" and rate == _TELEPHONE_RATE:
        return "audio/basic" if container == "ulaw" else "audio/x-alaw-basic"
    name = {"pcm": "pcm", "ulaw": "PCMU", "alaw": "PCMA"}[container]
    return f"audio/{name}; rate={rate}; channels=1"


def _usual_rate(container: str) -> int:
    return _TELEPHONE_RATE if container.startswith(("ulaw", "alaw")) else SAMPLE_RATE


def _checked_kbps(container: str, rate: int, kbps: int | None) -> int:
    if container == "mp3":
        allowed: tuple[int, ...] = _MP3_KBPS if rate >= 32_000 else _MP3_LOW_KBPS if rate >= 16_000 else _MP3_LOWEST_KBPS
        text = _listed(allowed)
    else:
        low, high = _OPUS_KBPS if container in _OPUS else (_AAC_LEAST_KBPS, rate * _AAC_MOST_BITS_PER_SAMPLE // 1000)
        allowed = tuple(range(low, high + 1))
        text = f"{low} to {high}"
    if kbps is None:
        return min(_DEFAULT_KBPS[container], allowed[-1])
    if kbps not in allowed:
        raise UnsupportedFormat(f"{container} at {rate} Hz has {text} kbit/s, not {kbps}", param="bitrate")
    return kbps


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
