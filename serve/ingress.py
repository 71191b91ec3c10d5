"""Ingress: the routes and the spine, deployed.

In:    HTTP, through Serve
Out:   HTTP
Owns:  one Synthesizer over handles, the door, whether the chain has spoken
Never: torch, mathematics
"""

import asyncio
import logging
import time
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from ray import serve

from pipeline.errors import SynthesisError, UnknownVoice
from pipeline.synthesizer import Synthesizer
from pipeline.types import SynthesisRequest
from pipeline.voices.catalogue import DEFAULT, VoiceCatalogue
from serve.api import create_api
from serve.backend import Backend
from serve.config import AppConfig, project_path
from serve.door import Door
from serve.handles import Handle, RemoteDecoder, RemoteFrontend, RemoteGenerator, ask_stats, ask_width
from serve.metrics import IngressMetrics

LOG = logging.getLogger("ray.serve.chattts")

FIRST_WORDS = "Ready."
RETRY_S = 1.0


def build_api() -> FastAPI:
    """The routes over the replica they run in. Serve's server announces the request id itself."""

    def backend() -> Backend:
        replica: Any = serve.get_replica_context().servable_object
        found: Backend = replica.backend
        return found

    return create_api(backend, announce_request_id=False)


def known_voice(voices: VoiceCatalogue, name: str | None) -> str:
    """The voice's own name by name or alias, the default voice's for None."""
    try:
        return voices.get(DEFAULT if name is None else name).name
    except UnknownVoice:
        # The catalogue's own message repeats the name; a reply repeats nothing a client sent.
        raise UnknownVoice("no such voice; GET /v1/audio/voices lists them, and seed:<number> is one", param="voice") from None


@serve.deployment(name="Ingress")
@serve.ingress(build_api)
class Ingress:
    """Takes requests once the whole chain has spoken a sentence."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: AppConfig, text: Handle, acoustic: Handle, vocoder: Handle
    ) -> None:
        self._acoustic = acoustic
        self._vocoder = vocoder
        voices = VoiceCatalogue.load(project_path(config.voices), await ask_width(acoustic))
        synthesizer = Synthesizer(
            RemoteFrontend(text),
            RemoteGenerator(acoustic),
            RemoteDecoder(vocoder),
            voices,
            config.pipeline.vocoder,
            config.pipeline.speech,
        )
        self.backend = Backend(
            stream=synthesizer.stream,
            voice_id=lambda name: known_voice(voices, name),
            voices=voices.list,
            limits=config.limits,
            door=Door(config.limits.max_in_flight),
            why_not_ready=self._why_not_ready,
            health=self._health,
            watch=IngressMetrics(),
        )
        self._first_audio_s = await self._speak_first_words()

    async def _speak_first_words(self) -> float:
        """One synthesis through the whole chain; Serve sends this replica no request before it is done.

        Returns:
            the seconds it took to the first audio.
        """
        limit_s = self.backend.limits.start_timeout_s
        async with asyncio.timeout(limit_s):
            while True:
                request = SynthesisRequest("first-words", FIRST_WORDS, self.backend.voice_id(None), timeout_s=limit_s)
                began, first_audio_s = time.monotonic(), 0.0
                try:
                    async with aclosing(self.backend.stream(request)) as chunks:
                        async for chunk in chunks:
                            first_audio_s = first_audio_s or time.monotonic() - began
                            if chunk.is_last:
                                return first_audio_s
                except SynthesisError as error:
                    LOG.warning("not ready yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _why_not_ready(self) -> str | None:
        acoustic, vocoder = await asyncio.gather(ask_stats(self._acoustic), ask_stats(self._vocoder))
        silent = [name for name, stats in (("AcousticModel", acoustic), ("Vocoder", vocoder)) if not stats]
        return f"no answer from {' and '.join(silent)}" if silent else None

    async def _health(self) -> dict[str, Any]:
        acoustic, vocoder = await asyncio.gather(ask_stats(self._acoustic), ask_stats(self._vocoder))
        return {"first_audio_s": round(self._first_audio_s, 3), "acoustic": acoustic, "vocoder": vocoder}
