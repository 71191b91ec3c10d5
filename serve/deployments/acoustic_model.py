"""AcousticModel: the engine, deployed. One replica per GPU.

In:    what Serve calls
Out:   what AcousticStage returns
Never: scheduling: @serve.batch only gathers arrivals for admission
"""

from ray import serve

from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine.sequence import Sequence
from serve.config.app_config import TracingConfig
from serve.remote.replica import replica_context
from serve.stages.acoustic_stage import AcousticStage


@serve.deployment(name="AcousticModel", max_ongoing_requests=512)
class AcousticModel(AcousticStage):
    """AcousticStage as a deployment."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        config: EngineConfig,
        checkpoint: str,
        tracing: TracingConfig | None = None,
        vocoder: VocoderConfig | None = None,
    ) -> None:
        """As AcousticStage.load."""
        await self.load(replica_context(), config, checkpoint, tracing, vocoder)
        self._gather.set_max_batch_size(config.slots)  # type: ignore[attr-defined]

    async def admit(self, arrival: tuple[Sequence, bool]) -> None:
        """As AcousticStage.admit, together with what arrives at the same time."""
        await self._gather(arrival)

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0, max_concurrent_batches=8)
    async def _gather(self, arrivals: list[tuple[Sequence, bool]]) -> list[None]:
        """Submits the sequences that arrived together, most often one; returns at once. This is not a batch of the model:
        the engine decodes all its slots together, whenever their sequences arrived."""
        self._engine.submit(arrivals)
        return [None] * len(arrivals)
