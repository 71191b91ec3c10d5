"""TextNormalizer: the text front end, deployed. As many replicas as the text needs.

In:    what Serve calls
Out:   what TextStage returns
Never: the GPU
"""

from collections.abc import Mapping

from ray import serve

from pipeline.config import PipelineConfig
from serve.config.app_config import TracingConfig
from serve.remote.replica import replica_context
from serve.stages.text_stage import TextStage


@serve.deployment(name="TextNormalizer", max_ongoing_requests=64)
class TextNormalizer(TextStage):
    """TextStage as a deployment."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, versions: Mapping[str, PipelineConfig], tracing: TracingConfig | None = None
    ) -> None:
        """As TextStage.load."""
        await self.load(replica_context(), versions, tracing)
