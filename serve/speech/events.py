"""Events: what an entry point receives while a job is synthesised: Started, any number of Timed and Audio, Finished.

Out:   SpeechEvent
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pipeline.types import AudioReport, CacheResult, TimedItem
from serve.speech.job import SpeechJob


class Digest(Protocol):
    """A running SHA-256."""

    def update(self, data: bytes, /) -> None:
        """Appends bytes."""
        ...

    def copy(self) -> "Digest":
        """Returns one that runs on by itself."""
        ...

    def digest(self) -> bytes:
        """Returns the hash of all bytes so far."""
        ...

    def hexdigest(self) -> str:
        """Returns it in hexadecimal."""
        ...


@dataclass(frozen=True, slots=True)
class Resumed:
    """The bytes of a reply that its client has, and that are left out."""

    first: int
    """byte of the audio that follows"""
    seq: int
    """number of the next event"""
    digest: Digest
    """of the bytes before"""


@dataclass(frozen=True, slots=True)
class Started:
    """The first audio is ready. Before this event the request can still be refused; afterwards its reply can only be cut."""

    job: SpeechJob
    cache: CacheResult
    """where the first segment's steps come from"""
    warnings: Mapping[str, int]
    """code of a text warning -> how often, as far as known"""
    replayed: bool | None
    """whether its idempotency key was used before; None: it has none"""
    timings_ms: Mapping[str, float]
    """time before the reply could begin, per stage, in the order of the stages [ms]"""
    token: str | None = None
    """with which any replica goes on with this reply; None: it cannot be resumed"""
    resumed: Resumed | None = None
    """None: it begins at its beginning"""


@dataclass(frozen=True, slots=True)
class Audio:
    """A piece of the audio in the job's format; never empty, except a whole audio without a sample."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Timed:
    """What is told about audio that follows, or that has just been yielded: no word is told after its audio."""

    job: SpeechJob
    items: tuple[TimedItem, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """All audio has been yielded."""

    job: SpeechJob
    audio_s: float
    report: AudioReport
    warnings: Mapping[str, int]


SpeechEvent = Started | Timed | Audio | Finished
