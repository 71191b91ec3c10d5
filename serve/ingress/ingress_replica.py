"""Ingress replica: the routes and the spine, in the process that listens.

In:    the configuration, the stages
Out:   the services that every protocol asks
Owns:  the parts of one ingress replica and its background work
Never: mathematics
"""

import asyncio
import gc
import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from serve.config.app_config import AppConfig
from serve.config.messages import explain
from serve.config.model_versions import RoutesConfig, wrong_routes
from serve.http.admission_check import AdmissionCheck
from serve.ingress.ingress_setup import background_work, build_parts, speak_first_words
from serve.stages.background_tasks import Background
from serve.stages.replica_context import ReplicaContext
from serve.stages.stage_handle import StageHandle

LOG = logging.getLogger("ray.serve.chattts")


class IngressReplica:
    """Takes requests once the whole chain has synthesised a sentence."""

    async def start(
        self, context: ReplicaContext, config: AppConfig, stages: Mapping[str, StageHandle], listens: str | None
    ) -> None:
        """Takes the arguments of build_parts; returns once it can serve."""
        self._background = Background()
        self._parts = parts = await build_parts(context, config, stages, listens)
        self.services = parts.services
        self.admission_check = AdmissionCheck(parts.services)
        for name, work in background_work(context, config, parts):
            self._background.start(name, work)
        parts.status.first_audio_s = await speak_first_words(parts.services.speech)
        await parts.replicas.probe_once()  # before the first request: a version without replicas would keep it waiting
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

    async def check_health(self) -> None:
        """Raises EngineDead if the replica has to be replaced."""
        self._background.check()

    async def drain(self) -> int:
        """Stops admitting requests, and ends conversations once they have spoken. Returns how many replies are not complete."""
        self.services.conversations.leave()
        self._parts.wyoming.leave()
        return max(self.services.speech.admission.close(), self.services.conversations.busy)

    async def stop(self) -> None:
        """Speaks what other listeners have accepted; then ends the background work and closes what it has opened."""
        if hasattr(self, "_parts"):
            await self._parts.wyoming.stop()
            await self._background.stop()
            await self._parts.records.close()
            await asyncio.to_thread(self.services.speech.tracing.close)
