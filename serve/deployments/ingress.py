"""Ingress: the routes and the spine, deployed.

In:    HTTP and gRPC, through Serve
Out:   HTTP and gRPC
Owns:  the parts of one ingress replica and its background work
Never: mathematics
"""

import gc
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError
from ray import serve

from serve.config.app_config import AppConfig
from serve.config.messages import explain
from serve.config.model_versions import RoutesConfig, wrong_routes
from serve.deployments.background_tasks import Background
from serve.deployments.ingress_setup import background_work, build_parts, speak_first_words
from serve.http.admission_check import AdmissionCheck
from serve.http.services import Services
from serve.protocols.api import create_api
from serve.protocols.riva.calls import CallContext, RivaService
from serve.remote.remote_stages import Handle

LOG = logging.getLogger("ray.serve.chattts")


def build_api() -> FastAPI:
    """Returns the routes over the replica they run in. Serve's server sends X-Request-ID itself."""

    def services() -> Services:
        replica: Any = serve.get_replica_context().servable_object
        replica_services: Services = replica.services
        return replica_services

    return create_api(services, announce_request_id=False)


@serve.deployment(name="Ingress", max_ongoing_requests=512)
@serve.ingress(build_api)
class Ingress:
    """Takes requests once the whole chain has synthesised a sentence."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: AppConfig, stages: Mapping[str, Handle], listens: str | None
    ) -> None:
        """Takes the arguments of build_parts. Serve sends the replica no request before this returns."""
        self._parts = parts = await build_parts(config, stages, listens)
        self.services = parts.services
        self.admission_check = AdmissionCheck(parts.services)
        self._background = Background()
        for name, work in background_work(config, parts):
            self._background.start(name, work)
        parts.status.first_audio_s = await speak_first_words(parts.services.speech)
        await parts.replicas.probe_once()  # before the first request: a version without replicas would keep it waiting
        self._riva = RivaService(parts.services)
        await parts.wyoming.start()
        self._background.start("probes", parts.replicas.probe())
        # What lives as long as the replica is not searched for garbage again: that would stop everybody for 60 ms at a time.
        gc.collect()
        gc.freeze()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Takes over new shares of the versions, without a restart. Wrong ones change nothing and are reported in /health."""
        rollout, status = self.services.speech.models.rollout, self._parts.status
        try:
            routes = RoutesConfig.model_validate(user_config)
            mistakes = list(wrong_routes(routes, tuple(rollout.versions.values())))
        except ValidationError as error:
            mistakes = explain(RoutesConfig, error, "user_config")
        status.routes_error = "; ".join(mistakes)
        if mistakes:
            LOG.error("versions: the weights stay as they were: %s", status.routes_error)
        else:
            rollout.configure(routes)

    async def Synthesize(self, requests: Any, grpc_context: CallContext) -> Any:
        """As RivaService.synthesize; Serve finds a method of gRPC by its name."""
        return await self._riva.synthesize(requests, grpc_context)

    async def SynthesizeOnline(self, requests: Any, grpc_context: CallContext) -> AsyncGenerator[Any, None]:
        """As RivaService.synthesize_online."""
        async with aclosing(self._riva.synthesize_online(requests, grpc_context)) as replies:
            async for reply in replies:
                yield reply

    async def GetRivaSynthesisConfig(self, requests: Any, grpc_context: CallContext) -> Any:
        """As RivaService.config."""
        return await self._riva.config(requests, grpc_context)

    async def Check(self, requests: Any, grpc_context: CallContext) -> Any:
        """As RivaService.health."""
        return await self._riva.health()

    def check_health(self) -> None:
        """Serve replaces the replica when this raises three times in a row, or its loop is too busy to answer."""
        self._background.check()

    async def drain(self) -> int:
        """Stops admitting requests, and ends conversations once they have spoken. Returns how many replies are not complete."""
        self.services.conversations.leave()
        self._parts.wyoming.leave()
        return max(self.services.speech.admission.close(), self.services.conversations.busy)

    async def __del__(self) -> None:
        """Speaks what other listeners have accepted. Serve awaits this within graceful_shutdown_timeout_s, once its own
        requests are complete."""
        if hasattr(self, "_parts"):
            await self._parts.wyoming.stop()
