"""VocoderBeside: the vocoder of an acoustic replica that decodes what it generates (vocoder.placement with_acoustic).

In:    the steps of one segment
Out:   the same steps with their samples
Owns:  one pipeline Vocoder, its metrics and its spans
Never: the load of the replica: the engine's steps show it, since both share its cores or its GPU
"""

from collections.abc import AsyncGenerator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.types import DecodedAudio, DecoderTraits, Head, HiddenWindow, Prompt, StepBatch, StepBlock
from pipeline.vocoder.beside import with_samples
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.vocoder_fingerprint import vocoder_fingerprint
from serve.observability.metrics.registry import NewSeries
from serve.observability.metrics.vocoder_metrics import VocoderMetrics
from serve.observability.tracing import Tracing


class VocoderBeside:
    """Decodes the steps of one replica's engine."""

    def __init__(self, config: VocoderConfig, checkpoint: Checkpoint, tracing: Tracing, new_series: NewSeries) -> None:
        """Loads the vocoder and warms it up. Blocking."""
        self._tracing = tracing
        self._vocoder = Vocoder(config, checkpoint)
        self._vocoder.warm_up()
        self._metrics = VocoderMetrics(new_series)
        self.fingerprint = vocoder_fingerprint(config, checkpoint)
        """of everything that affects its samples"""

    def spoken(self, blocks: AsyncGenerator[StepBlock, None], prompt: Prompt, trace: str) -> AsyncGenerator[StepBlock, None]:
        """Streams the blocks of a segment with their samples; those of a text as they are. `trace`: as tracing.carried."""
        if prompt.head is not Head.CODE:
            return blocks
        decoder = StreamDecoder(_Traced(self._vocoder, self._tracing, trace))
        scheduling = prompt.scheduling
        return with_samples(blocks, decoder, latency=scheduling.latency, skipped_chunk_sizes=scheduling.skipped_chunk_sizes)

    async def traits(self) -> DecoderTraits:
        """Returns the properties of the vocoder as built on this machine."""
        return replace(await self._vocoder.traits(), is_beside_engine=True)

    def stats(self) -> dict[str, Any]:
        """Returns VocoderStats as a mapping."""
        return asdict(self._vocoder.stats())

    def update_metrics(self) -> None:
        """Sets its metrics to the numbers of this moment."""
        self._metrics.update(self.stats(), None)

    def check_health(self) -> None:
        """Raises EngineDead if the vocoder has ended or hangs."""
        self._vocoder.check_health()

    def close(self) -> None:
        """Ends the vocoder. May be called twice."""
        self._vocoder.close()


class _Traced:
    """protocols.WaveDecoder whose calls are spans of one segment."""

    def __init__(self, vocoder: Vocoder, tracing: Tracing, trace: str) -> None:
        self._vocoder = vocoder
        self._tracing = tracing
        self._trace = trace

    async def traits(self) -> DecoderTraits:
        return await self._vocoder.traits()

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        with self._tracing.vocoder_call(self._trace, window.body_stop - window.body_start):
            return await self._vocoder.decode(window)

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        with self._tracing.vocoder_call(self._trace, len(batch.steps)):
            return await self._vocoder.feed(batch)
