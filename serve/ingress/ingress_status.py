"""Ingress status: whether one ingress replica can serve, and the state of every part behind it.

In:    the parts of the replica
Out:   why it is not ready, the body of /health, gauges that are set each period
Owns:  the facts that nothing else keeps: records that cannot be read, wrong routes, the time to the first audio
Never: requests, HTTP
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pipeline.store.store import SET_BACK
from serve.access.api_keys import LOST
from serve.http.connection import UnreadBytes
from serve.ingress.ingress_records import IngressRecords
from serve.observability.metrics.ingress_metrics import IngressMetrics
from serve.resilience.quarantine import Quarantine
from serve.speech.speech_services import SpeechServices
from serve.stages.cold_start import Wakefulness
from serve.stages.replicas import Replicas, fullest_gpu


class IngressStatus:
    """http.services.ServiceStatus of one ingress replica."""

    def __init__(
        self,
        speech: SpeechServices,
        records: IngressRecords,
        replicas: Replicas,
        quarantine: Quarantine,
        unread: UnreadBytes,
        runtime_limits: Mapping[str, str],
    ) -> None:
        self.unreadable: dict[str, str] = {}
        """kind of record that cannot be read at this moment: why"""
        self.routes_error = ""
        """why the latest routes were not taken over"""
        self.first_audio_s = 0.0
        """of the first synthesis through the whole chain"""
        self._speech = speech
        self._records = records
        self._replicas = replicas
        self._quarantine = quarantine
        self._unread = unread
        self._runtime_limits = runtime_limits
        self._health: asyncio.Task[dict[str, Any]] | None = None

    async def why_not_ready(self) -> str | None:
        """Returns why a request would not be served now; None if it would."""
        if self._speech.admission.closed:
            return "draining"
        unresponsive = await self._replicas.unresponsive()
        return f"no answer from {' and '.join(unresponsive)}" if unresponsive else None

    def wakefulness(self) -> Mapping[str, str]:
        """Returns the deployments that have no replica at this moment and may have none: `asleep` or `waking`."""
        return {name: state for name, state in self._replicas.wakefulness().items() if state is not Wakefulness.AWAKE}

    async def health(self) -> dict[str, Any]:
        """Returns the state of every part, for people and dashboards: one for all who ask meanwhile, not to be changed."""
        if self._health is None or self._health.done():
            self._health = asyncio.create_task(self._collect())
        return await asyncio.shield(self._health)  # who leaves takes it from nobody

    async def _collect(self) -> dict[str, Any]:
        replicas, rollout, ladder = self._replicas, self._speech.models.rollout, self._speech.degrader.ladder
        text, acoustic, vocoder = await asyncio.gather(*map(replicas.stats, ("text", "acoustic", "vocoder")))
        return {
            "first_audio_s": round(self.first_audio_s, 3),
            "stages": self._replicas.wakefulness(),
            "cache": asdict(self._records.cache.stats()),
            "stores": self._stores(),
            "gpu_mem_percent": fullest_gpu((*acoustic, *vocoder)),
            "text": text,
            "acoustic": acoustic,
            "vocoder": vocoder,
            "breakers": {stage: breaker.summary() for stage, breaker in replicas.breakers.items()},
            "quarantine": self._quarantine.summary(),
            "degrade": {"level": ladder.level, "active_steps": ladder.active_steps, "rtf": round(ladder.rtf, 3)},
            "versions": {version: rollout.summary(version) for version in rollout.versions},
            **({"differing_replicas": differing} if (differing := replicas.builds.differing) else {}),
            **({"runtime_limits": self._runtime_limits} if self._runtime_limits else {}),
            **({"routes_error": self.routes_error} if self.routes_error else {}),
        }

    def export(self, metrics: IngressMetrics) -> None:
        """Sets the gauges of everything that does not report its changes itself."""
        metrics.in_flight_changed(self._speech.admission.in_flight)  # reported too, but Ray drops a gauge that is not set again
        metrics.set_unread(self._unread.total)
        metrics.set_quotas(self._records.quotas.is_away)
        metrics.set_store(any(name in self.unreadable for name in self._records.stores))
        metrics.set_cache(asdict(self._records.cache.stats()))
        metrics.set_kinds_of_replicas(self._replicas.kinds_of_replicas())
        metrics.set_policies(self._replicas.breakers.values(), self._quarantine, self._speech.models.rollout)

    def _stores(self) -> Mapping[str, str]:
        set_back = [f"{name} {when}" for store in self._records.stores.values() for name, when in store.set_back.items()]
        return {
            **self.unreadable,
            **({"set_back": f"{', '.join(set_back)}: {SET_BACK}"} if set_back else {}),
            **({"keys": LOST} if self._records.keys.are_lost else {}),
        }
