"""Text stage: the text front end, behind a stage handle.

In:    calls of ask, capabilities, stats
Out:   results of protocols.TextFrontend
Owns:  one IsolatedFrontend per group of versions with the same text settings, and their health
Never: the GPU
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pipeline.checkpoint.capabilities import Capabilities, read_capabilities
from pipeline.checkpoint.locate import resolve
from pipeline.config import PipelineConfig
from pipeline.paths import cache_home
from pipeline.text.frontend_client import TextOperation
from pipeline.text.isolation.isolated_frontend import IsolatedFrontend, TextStats
from pipeline.text.segment import limits_of
from pipeline.types import SpeechPlan, SynthesisRequest
from serve.config.app_config import TracingConfig
from serve.observability.metrics.definitions import TEXT_ANSWER, TEXT_ANSWERS, TEXT_RESTARTS, TEXT_WAITING
from serve.observability.metrics.registry import MetricRegistry, NewSeries, every_period
from serve.observability.tracing import Tracing
from serve.resilience.autoscaling import Load, TextLoad
from serve.stages.background_tasks import Background
from serve.stages.replica_context import ReplicaContext
from serve.stages.stage_clients import as_value


class TextMetrics:
    """Metrics of one text replica."""

    def __init__(self, new_series: NewSeries) -> None:
        self._registry = MetricRegistry(new_series)

    def update(self, stats: Mapping[str, Any], load: Load) -> None:
        """Updates the metrics from TextStats and the load."""
        registry = self._registry
        registry.set_load(load)
        registry.set_gauge(TEXT_WAITING, stats["waiting"])
        registry.set_gauge(TEXT_ANSWER, stats["read_s"])
        registry.set_total(TEXT_ANSWERS, stats["answers"])
        registry.set_total(TEXT_RESTARTS, stats["restarts"])


class TextStage:
    """Reads texts. CPU only."""

    async def load(
        self, context: ReplicaContext, versions: Mapping[str, PipelineConfig], tracing: TracingConfig | None = None
    ) -> None:
        """Starts its workers. The process goes on answering meanwhile.

        Args:
            versions: version of the model -> its configuration; versions with the same limits share a process.
        """
        self._context = context
        self._tracing = Tracing(tracing, "TextNormalizer", context.replica)
        self._capabilities: dict[str, Capabilities] = {}
        created: dict[tuple[object, ...], IsolatedFrontend] = {}
        self._frontends: dict[str, IsolatedFrontend] = {}
        for version, pipeline in versions.items():
            engine, folder = pipeline.engine, await asyncio.to_thread(resolve, pipeline.checkpoint, cache_home())
            self._capabilities[version] = read_capabilities(folder)
            key = (folder, limits_of(engine), engine.max_prompt, engine.max_steps)
            if key not in created:
                created[key] = IsolatedFrontend(*key[:2], max_prompt=engine.max_prompt, max_steps=engine.max_steps)
            self._frontends[version] = created[key]
        self._workers = tuple(created.values())
        metrics, load = TextMetrics(context.new_series), TextLoad()
        self._latest = Load()

        def update() -> None:
            stats = asdict(self._stats())
            self._latest = load.measure(stats, time.monotonic())
            metrics.update(stats, self._latest)

        self._background = Background()
        self._background.start("metrics", every_period(update))

    async def ask(
        self,
        version: str,
        operation: TextOperation,
        subject: SynthesisRequest | SpeechPlan,
        *arguments: object,
        trace: str = "",
    ) -> object:
        """Answers StageFrontend for one version of the model; errors are values. `trace`: as tracing.carried."""
        with self._tracing.within(trace, f"text.{operation}"):
            return await as_value(self._frontends[version].ask(operation, subject, *arguments))

    async def capabilities(self) -> dict[str, Capabilities]:
        """Returns version id -> capabilities of its checkpoint."""
        return self._capabilities

    async def stats(self) -> dict[str, Any]:
        """Returns the state of the text workers, and where they run."""
        trouble = next(filter(None, (worker.trouble for worker in self._workers)), "")
        stats = self._stats()
        load = self._latest.as_stats()
        return {**self._context.info(), "trouble": trouble, "has_work": stats.asked_s > 0, **load, **asdict(stats)}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the latest load, for StepBacklogPolicy where the configuration names it."""
        return self._latest.as_stats()

    async def check_health(self) -> None:
        """Raises EngineDead if the replica has to be replaced; a worker that died or hangs is replaced before."""
        self._background.check()
        await asyncio.gather(*(worker.check_health() for worker in self._workers))

    def __del__(self) -> None:
        if (tracing := getattr(self, "_tracing", None)) is not None:
            tracing.close()

    def _stats(self) -> TextStats:
        return together([worker.stats() for worker in self._workers])


def together(stats: list[TextStats]) -> TextStats:
    """Returns the stats of all workers of one replica as one."""
    return TextStats(
        waiting=sum(worker.waiting for worker in stats),
        asked_s=max(worker.asked_s for worker in stats),
        answers=sum(worker.answers for worker in stats),
        read_s=max(worker.read_s for worker in stats),
        busy_s=sum(worker.busy_s for worker in stats),
        restarts=sum(worker.restarts for worker in stats),
    )
