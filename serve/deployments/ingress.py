"""Ingress: the ingress replica, deployed.

In:    HTTP and gRPC, through Serve
Out:   HTTP and gRPC
Never: what IngressReplica does
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from serve.config.app_config import AppConfig
from serve.config.model_versions import TEXT
from serve.http.services import Services
from serve.ingress.ingress_replica import IngressReplica
from serve.local.local_handle import LocalHandle
from serve.protocols.api import create_api
from serve.protocols.riva.calls import CallContext, RivaService
from serve.remote.remote_handle import RemoteHandle
from serve.remote.replica import replica_context
from serve.stages.replica_table import table_of
from serve.stages.stage_handle import StageHandle
from serve.stages.text_stage import TextStage


def build_api() -> FastAPI:
    """Returns the routes over the replica they run in. Serve's server sends X-Request-ID itself."""

    def services() -> Services:
        replica: Any = serve.get_replica_context().servable_object
        replica_services: Services = replica.services
        return replica_services

    return create_api(services, announce_request_id=False)


@serve.deployment(name="Ingress", max_ongoing_requests=512)
@serve.ingress(build_api)
class Ingress(IngressReplica):
    """IngressReplica as a deployment."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: AppConfig, stages: Mapping[str, DeploymentHandle[Any]], listens: str | None
    ) -> None:
        """As IngressReplica.start. Serve sends the replica no request before this returns."""
        context = replica_context()
        handles: dict[str, StageHandle] = {name: RemoteHandle(handle, table_of(name)) for name, handle in stages.items()}
        self._text: TextStage | None = None
        if TEXT not in stages:
            self._text = TextStage()
            await self._text.load(context, config.pipelines, config.tracing)
            handles[TEXT] = LocalHandle(self._text)
        await self.start(context, config, handles, listens)
        self._riva = RivaService(self.services)

    async def check_health(self) -> None:
        """As IngressReplica and, where it is here, TextStage."""
        await super().check_health()
        if self._text is not None:
            await self._text.check_health()

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

    async def __del__(self) -> None:
        """As IngressReplica.stop. Serve awaits this within graceful_shutdown_timeout_s, once its own requests are complete."""
        await self.stop()
