"""Speech services: the parts of an ingress replica that speaking needs, for every entry point.

Out:   SpeechServices
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pipeline.protocols import SpeechStream
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from pipeline.types import LoadReport, SynthesisRequest
from serve.access.admission import AdmissionLimiter
from serve.access.caller import Caller
from serve.access.idempotency import Idempotency
from serve.config.app_config import LanesConfig, LimitsConfig
from serve.observability.reply_stats import ReplyObserver
from serve.observability.request_log import RefusalTally
from serve.observability.tracing import Tracing
from serve.speech.load_shedding import Degrader
from serve.speech.model_selection import ModelSelector
from serve.speech.resuming import Resuming


@dataclass(frozen=True, slots=True, eq=False)
class SpeechServices:
    """The parts of one ingress replica that every request for speech passes. Tests pass small fakes."""

    stream: SpeechStream
    """synthesises a request with the pipelines behind the handles"""
    awake: Callable[[SynthesisRequest], Awaitable[float]]
    """returns how long it waited for the stages of a request to have replicas [s]; raises StageAsleep, AtCapacity"""
    voice_id: Callable[[str | None], str]
    """any name of a voice to its stable id; None to that of the default voice; raises UnknownVoice"""
    lexicons: LexiconLibrary
    limits: LimitsConfig
    lanes: LanesConfig
    admission: AdmissionLimiter
    idempotency: Idempotency
    resuming: Resuming
    models: ModelSelector
    degrader: Degrader
    observer: ReplyObserver
    refusals: RefusalTally
    tracing: Tracing
    replaces_unknown_voices: bool = False
    """whether the default voice speaks for one that is not there"""
    load_reports: Callable[[], list[LoadReport]] = list
    """returns the latest report of each engine"""
    owner: Callable[[str], Caller] = Caller
    """returns who accepted work of a tenant goes on for; raises StoreUnavailable while that is not known"""
