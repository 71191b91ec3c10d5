"""Vocoder stage: the vocoder, behind a stage handle. On a GPU of its own, a share of one, or CPUs.

In:    calls of feed, decode, traits, stats
Out:   samples, and the decoder state that the next feed of the same utterance brings
Owns:  one pipeline Vocoder and its health
Never: streams: feeds and windows of many requests arrive in any order, independent of each other; batches: the pipeline's
       vocoder forms them from what waits, up to vocoder.rows
"""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import VocoderConfig
from pipeline.errors import EngineDead, SynthesisError
from pipeline.model.gpu.device_memory import gpu_mem_percent
from pipeline.model.gpu.placement import on_this_machine
from pipeline.native.memory import return_free_memory
from pipeline.paths import cache_home
from pipeline.types import DecodedAudio, DecoderTraits, HiddenWindow, StepBatch
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.vocoder_fingerprint import vocoder_fingerprint
from serve.config.app_config import TracingConfig
from serve.observability.metrics.registry import every_period
from serve.observability.metrics.vocoder_metrics import VocoderMetrics
from serve.observability.tracing import Tracing
from serve.resilience.autoscaling import Load, VocoderLoad
from serve.stages.background_tasks import Background, trouble_of
from serve.stages.process_exit import end_process
from serve.stages.replica_context import ReplicaContext
from serve.stages.stage_clients import as_value

T = TypeVar("T")


class VocoderStage:
    """Decodes the steps of many streams."""

    async def load(
        self, context: ReplicaContext, config: VocoderConfig, checkpoint: str, tracing: TracingConfig | None = None
    ) -> None:
        """Loads the weights and warms up. The process goes on answering meanwhile."""
        self._context = context
        self._tracing = Tracing(tracing, "Vocoder", context.replica)
        self._device = on_this_machine(config).device
        self._vocoder, self._fingerprint = await asyncio.to_thread(load_vocoder, config, checkpoint)
        metrics = VocoderMetrics(context.new_series)
        self._load = VocoderLoad(config.rows)
        self._latest = Load()

        def update() -> None:
            stats = asdict(self._vocoder.stats())
            self._latest = self._load.measure(stats, time.monotonic())
            metrics.update(stats, self._latest)

        self._background = Background()
        self._background.start("metrics", every_period(update))

    async def traits(self) -> DecoderTraits:
        """Returns what the decoder takes, which depends on what this machine can compile."""
        return await self._vocoder.traits()

    async def feed(self, batch: StepBatch, trace: str = "") -> DecodedAudio | SynthesisError:
        """Decodes the next steps of an utterance; errors are values. `trace`: as tracing.carried."""
        with self._tracing.vocoder_call(trace, len(batch.steps)), self._load.call():
            return await answered(self._vocoder.feed(batch))

    async def decode(self, window: HiddenWindow, trace: str = "") -> NDArray[np.float32] | SynthesisError:
        """Decodes a window; errors are values. `trace`: as tracing.carried."""
        with self._tracing.vocoder_call(trace, window.body_stop - window.body_start), self._load.call():
            return await answered(self._vocoder.decode(window))

    async def stats(self) -> dict[str, Any]:
        """Returns the state of the vocoder, and where it runs."""
        return {
            **self._context.info(),
            "trouble": trouble_of(self.check_health),
            "has_work": self._load.inside > 0,
            "gpu_mem_percent": gpu_mem_percent(self._device),
            "fingerprint": self._fingerprint,
            **self._latest.as_stats(),
            **asdict(self._vocoder.stats()),
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the latest load, for StepBacklogPolicy where the configuration names it."""
        return self._latest.as_stats()

    def check_health(self) -> None:
        """Raises EngineDead if the replica has to be replaced."""
        self._background.check()
        self._vocoder.check_health()

    def __del__(self) -> None:
        for part in ("_vocoder", "_tracing"):
            if (opened := getattr(self, part, None)) is not None:
                opened.close()


async def answered(answer: Awaitable[T]) -> T | SynthesisError:
    """Returns the answer, or a domain error in its place; a vocoder that has died ends its process instead."""
    value = await as_value(answer)
    if isinstance(value, EngineDead):
        end_process(value)
    return value


def load_vocoder(config: VocoderConfig, checkpoint: str) -> tuple[Vocoder, str]:
    """Returns a vocoder with verified weights on its device, warmed up, and its fingerprint."""
    files = open_checkpoint(resolve(checkpoint, cache_home()))
    vocoder = Vocoder(config, files)
    vocoder.warm_up()
    fingerprint = vocoder_fingerprint(config, files)
    return_free_memory()
    return vocoder, fingerprint
