"""Services: what the routes need, whatever provides it.

Out:   Services
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.types import Refined, SpeechText, SynthesisRequest
from serve.access.authentication import Authenticator
from serve.config.app_config import SourceOfferConfig
from serve.http.body_reader import BodyReader
from serve.http.connection import UnreadBytes
from serve.jobs.service import JobService
from serve.observability.recent_replies import RecentReplies
from serve.speech.conversation.conversation import Conversations
from serve.speech.speech_services import SpeechServices
from serve.voices.voice_service import VoiceService


class TextServices(Protocol):
    """Looks at a text without synthesising it."""

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Returns the normalised text. Raises SynthesisError."""
        ...

    async def refine(self, request: SynthesisRequest) -> list[Refined]:
        """Returns every segment before and after the refine pass. Raises SynthesisError."""
        ...


class ServiceStatus(Protocol):
    """The state of the service as this replica sees it."""

    async def why_not_ready(self) -> str | None:
        """Returns why a request would not be served now; None if it would."""
        ...

    def wakefulness(self) -> Mapping[str, str]:
        """Returns the deployments that have no replica at this moment and may have none: `asleep` or `waking`."""
        ...

    async def health(self) -> dict[str, Any]:
        """Returns the state of every part, for people and dashboards."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Services:
    """The parts of one ingress replica: over handles under Serve, over small fakes in tests."""

    speech: SpeechServices
    """what every request for speech passes"""
    conversations: Conversations
    jobs: JobService
    text: TextServices
    voices: VoiceService
    bodies: BodyReader
    unread: UnreadBytes
    authenticator: Authenticator
    status: ServiceStatus
    purge: Callable[[str | None], Awaitable[None]]
    """deletes the cache entries of a tenant, of all tenants for None; raises StoreUnavailable"""
    source_offer: SourceOfferConfig
    recent: RecentReplies
    metrics_text: Callable[[], bytes] | None
    """what Prometheus reads here; None: the runtime's exporter has it"""
    dashboards: Mapping[str, str]
    """name -> address, of the operator's other tools"""
