"""Job: one request for speech, first as it arrived, then as the service has resolved it.

In:    what an entry point knows about a request beside its body; a checked body
Out:   RequestContext, SpeechJob
"""

from dataclasses import dataclass, replace
from typing import Literal

from pipeline.audio.formats import AudioFormat
from pipeline.types import Lane, SynthesisRequest
from serve.access.caller import ANONYMOUS_CALLER, Caller
from serve.access.resume_tokens import Resumption
from serve.observability.stage_timings import Fields

TimestampsOf = Literal["segment", "word", "char", "live"]
"""of what a reply gives the times; live: of words, after their audio where waiting might be heard"""
OF_WORDS = ("word", "char", "live")
SubtitlesIn = Literal["srt", "vtt"]


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What an entry point knows about a request beside its body."""

    request_id: str
    caller: Caller = ANONYMOUS_CALLER
    client_host: str | None = None
    """address of a client without a key, if known: it distinguishes them"""
    traceparent: str | None = None
    """W3C trace context of the client"""
    strict: bool = False
    """refuse fields that have no effect instead of naming them"""
    cache_control: str = ""
    """as HTTP's header of that name"""
    idempotency_key: str | None = None
    """as HTTP's header of that name, not yet checked"""
    resumes: Resumption | None = None
    """where an earlier reply goes on; None: it is a new one"""
    behind: str = ""
    """what was spoken just before, by itself"""
    continues: bool = False
    """it speaks text that was accepted before, and does so even while the replica drains"""
    is_paid: bool = False
    """it belongs to work whose characters were charged when that was accepted"""


@dataclass(frozen=True, slots=True)
class SpeechJob:
    """An admitted request for speech: what is synthesised, and in which format it is sent."""

    request: SynthesisRequest
    audio: AudioFormat
    streamed: bool
    """False: the whole audio in one piece, with exact sizes in its header"""
    ignored: tuple[str, ...] = ()
    """fields of the body that have no effect"""
    degraded: tuple[str, ...] = ()
    """degradation steps applied because of load"""
    timestamps: TimestampsOf | None = None
    """what is told the time of; None: nothing"""
    subtitles: SubtitlesIn | None = None
    """in which format the reply has subtitles; None: it has none"""

    @property
    def characters(self) -> int:
        """Number of characters of its text, which are charged."""
        return len(self.request.text)

    @property
    def is_bulk(self) -> bool:
        """True if it may be preempted by more urgent requests."""
        return self.request.scheduling.lane is Lane.BULK

    @property
    def first_audio_timeout_s(self) -> float:
        """Longest time to its first audio: what its lane or its deadline promises [s]."""
        promised_s = self.request.scheduling.first_audio_s
        assert promised_s is not None, "every lane has a promise"
        return promised_s

    def after(self, waited_s: float) -> "SpeechJob":
        """Returns it with less time to its first audio."""
        if not waited_s:
            return self
        scheduling = replace(self.request.scheduling, first_audio_s=self.first_audio_timeout_s - waited_s)
        return replace(self, request=replace(self.request, scheduling=scheduling))

    def summary(self) -> Fields:
        """Returns the fields of a log line that describe the job."""
        return {
            "model": self.request.model,
            "lane": self.request.scheduling.lane.value,
            "characters": self.characters,
            "container": self.audio.container,
            "streamed": self.streamed,
            "latency": self.request.scheduling.latency.value,
        }
