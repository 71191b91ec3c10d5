"""Vocoder: the vocoder, deployed. On a GPU of its own, a share of one, or CPUs.

In:    handle calls feed, decode, traits, stats
Out:   samples, and what the next feed of the same utterance carries
Owns:  one pipeline Vocoder and its health
Never: streams: feeds and windows of many requests come as they like, and know nothing of each other
"""

import asyncio
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray import serve

from pipeline.checkpoints import cache_home, resolve
from pipeline.config import VocoderConfig
from pipeline.errors import EngineDead, SynthesisError
from pipeline.model.device import gpu_mem_percent
from pipeline.model.weights import open_checkpoint
from pipeline.types import DecoderTraits, Feed, Heard, HiddenWindow
from pipeline.vocoder.vocoder import Vocoder as LocalVocoder
from serve.config import TracingConfig
from serve.ending import end_process
from serve.metrics import VocoderMetrics, every_period
from serve.placement import placed
from serve.scaling import Load, VocoderLoad
from serve.tracing import Tracing


@serve.deployment(name="Vocoder")
class Vocoder:
    """Decodes the steps of many streams."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: VocoderConfig, checkpoint: str, tracing: TracingConfig | None = None
    ) -> None:
        self._tracing = Tracing(tracing, "Vocoder", placed()["replica"])
        self._device = config.device
        self._vocoder = await asyncio.to_thread(load_vocoder, config, checkpoint)
        metrics = VocoderMetrics()
        self._load = VocoderLoad(config.rows)
        self._latest = Load()

        def look() -> None:
            stats = asdict(self._vocoder.stats())
            self._latest = self._load.look(stats, time.monotonic())
            metrics.show(stats, self._latest)

        self._shown = asyncio.create_task(every_period(look))
        self._gather.set_max_batch_size(config.rows)  # type: ignore[attr-defined]

    async def traits(self) -> DecoderTraits:
        """See protocols.WaveDecoder: what this machine could build."""
        return await self._vocoder.traits()

    async def feed(self, feed: Feed, trace: str = "") -> Heard | SynthesisError:
        """See protocols.WaveDecoder; errors are values. `trace`: see serve/tracing.py."""
        with self._tracing.within(trace, "vocoder.call", {"steps": len(feed.steps)}), self._load.call():
            try:
                return await self._vocoder.feed(feed)
            except EngineDead as death:
                end_process(death)
            except SynthesisError as error:
                return error

    async def decode(self, window: HiddenWindow, trace: str = "") -> NDArray[np.float32] | SynthesisError:
        """See protocols.WaveDecoder; errors are values. `trace`: see serve/tracing.py."""
        with (
            self._tracing.within(trace, "vocoder.call", {"steps": window.body_stop - window.body_start}),
            self._load.call(),
        ):
            samples = await self._gather(window)
        if isinstance(samples, EngineDead):
            end_process(samples)
        if isinstance(samples, BaseException) and not isinstance(samples, SynthesisError):
            raise samples
        return samples

    # The vocoder's own thread picks what it decodes next; two batches keep it busy while a third is gathered.
    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.002, max_concurrent_batches=2)
    async def _gather(self, windows: list[HiddenWindow]) -> list[NDArray[np.float32] | BaseException]:
        """Decode windows together. A failure is a value: raised here, it would fail the whole batch."""
        return await asyncio.gather(*(self._vocoder.decode(window) for window in windows), return_exceptions=True)

    async def stats(self) -> dict[str, Any]:
        """The vocoder at this moment, and where it runs."""
        return {**placed(), "gpu_mem_percent": gpu_mem_percent(self._device), **asdict(self._vocoder.stats())}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For serve/scaling.py, WorkAhead, where the configuration names it."""
        return self._latest.as_stats()

    def check_health(self) -> None:
        """Serve replaces the replica when this raises three times in a row."""
        self._vocoder.check_health()

    def __del__(self) -> None:
        vocoder = getattr(self, "_vocoder", None)
        if vocoder is not None:
            vocoder.close()


def load_vocoder(config: VocoderConfig, checkpoint: str) -> LocalVocoder:
    """Verified weights, on their device, warm."""
    vocoder = LocalVocoder(config, open_checkpoint(resolve(checkpoint, cache_home())))
    vocoder.warm_up()
    return vocoder
