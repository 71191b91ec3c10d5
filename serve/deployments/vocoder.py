"""Vocoder: the vocoder, deployed.

In:    what Serve calls
Out:   what VocoderStage returns
Never: streams, batches: the pipeline's vocoder forms them from what waits
"""

from ray import serve

from pipeline.config import VocoderConfig
from serve.config.app_config import TracingConfig
from serve.remote.replica import replica_context
from serve.stages.vocoder_stage import VocoderStage


@serve.deployment(name="Vocoder", max_ongoing_requests=512)
class Vocoder(VocoderStage):
    """VocoderStage as a deployment."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: VocoderConfig, checkpoint: str, tracing: TracingConfig | None = None
    ) -> None:
        """As VocoderStage.load."""
        await self.load(replica_context(), config, checkpoint, tracing)
