"""Services: what the routes need, and nothing about who provides it.

In:    nothing
Out:   Services
Owns:  nothing
Never: Ray, torch
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.text.lexicon.library import LexiconLibrary
from pipeline.types import AudioChunk, Refined, SpeechText, SynthesisRequest
from pipeline.voices.catalogue import VoiceInfo
from serve.access.admission import AdmissionLimiter
from serve.access.authentication import Authenticator
from serve.access.idempotency import Idempotency
from serve.config.app_config import LanesConfig, LimitsConfig, SourceOfferConfig
from serve.http.body_reader import BodyReader
from serve.observability.reply_stats import NullReplyObserver, ReplyObserver
from serve.observability.request_log import RefusalTally
from serve.observability.tracing import Tracing
from serve.remote.recent_refusals import RecentOverload
from serve.speech.load_shedding import Degrader
from serve.speech.model_selection import ModelSelector, only_model
from serve.voices.voice_service import VoiceService


@dataclass(frozen=True, slots=True, eq=False)
class Services:
    """One ingress replica's insides. Under Serve handles stand behind it, in tests small fakes do."""

    stream: Callable[[SynthesisRequest], AsyncGenerator[AudioChunk, None]]
    voice_id: Callable[[str | None], str]
    """the name that goes on meaning the same voice, by any of its names; of the default voice for None; raises UnknownVoice"""
    read: Callable[[SynthesisRequest], Awaitable[SpeechText]]
    """what would be said, without saying it"""
    refine: Callable[[SynthesisRequest], Awaitable[list[Refined]]]
    """what the refine pass makes of every segment"""
    lexicons: LexiconLibrary
    list_voices: Callable[[], Sequence[VoiceInfo]]
    voices: VoiceService
    limits: LimitsConfig
    bodies: BodyReader
    admission: AdmissionLimiter
    why_not_ready: Callable[[], Awaitable[str | None]]
    """None when a request would be served now, else the reason"""
    health: Callable[[], Awaitable[dict[str, Any]]]
    """the state of every part, for people and dashboards"""
    purge: Callable[[str | None], Awaitable[None]]
    """forget what was sampled for a tenant, for everybody for None; raises StoreUnavailable"""
    lanes: LanesConfig = field(default_factory=LanesConfig)
    authenticator: Authenticator = field(default_factory=Authenticator)
    """who is let in"""
    idempotency: Idempotency = field(default_factory=Idempotency)
    models: ModelSelector = field(default_factory=only_model)
    """which version of the model speaks"""
    source_offer: SourceOfferConfig = field(default_factory=SourceOfferConfig)
    degrader: Degrader = field(default_factory=Degrader)
    """what is given up under load"""
    overload: RecentOverload = field(default_factory=RecentOverload)
    """whether the engine had no room a moment ago"""
    refusals: RefusalTally = field(default_factory=RefusalTally)
    """those for want of room, for the log"""
    observer: ReplyObserver = field(default_factory=NullReplyObserver)
    """is told about every reply"""
    tracing: Tracing = field(default_factory=Tracing)
