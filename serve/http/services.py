"""Services: what the routes need, and nothing about who provides it.

In:    nothing
Out:   Services
Owns:  nothing
Never: Ray, torch
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.types import Refined, SpeechText, SynthesisRequest
from serve.access.authentication import Authenticator
from serve.config.app_config import SourceOfferConfig
from serve.http.body_reader import BodyReader
from serve.speech.services import SpeechServices
from serve.voices.voice_service import VoiceService


class TextServices(Protocol):
    """Looks at a text without speaking it."""

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """The text as it would be spoken. Raises SynthesisError."""
        ...

    async def refine(self, request: SynthesisRequest) -> list[Refined]:
        """The refine pass's version of every segment. Raises SynthesisError."""
        ...


class ServiceStatus(Protocol):
    """The state of the service as this replica sees it."""

    async def why_not_ready(self) -> str | None:
        """None when a request would be served now, else the reason."""
        ...

    async def health(self) -> dict[str, Any]:
        """The state of every part, for people and dashboards."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Services:
    """The parts of one ingress replica. Under Serve handles stand behind it, in tests small fakes do."""

    speech: SpeechServices
    """what every request for speech passes"""
    text: TextServices
    voices: VoiceService
    bodies: BodyReader
    authenticator: Authenticator
    status: ServiceStatus
    purge: Callable[[str | None], Awaitable[None]]
    """forgets what was sampled for a tenant, or for all with None; raises StoreUnavailable"""
    source_offer: SourceOfferConfig
