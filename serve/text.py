"""TextNormalizer: the text front end, deployed.

In:    handle calls read, plan, replan, compare
Out:   what protocols.TextFrontend says
Owns:  one IsolatedFrontend
Never: torch, the GPU
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from ray import serve

from pipeline.checkpoints import cache_home, resolve
from pipeline.config import PipelineConfig
from pipeline.errors import SynthesisError
from pipeline.text.guard import Refined
from pipeline.text.isolated import IsolatedFrontend
from pipeline.text.script import Script
from pipeline.types import SpeechPlan, SynthesisRequest, Voice
from serve.config import TracingConfig
from serve.handles import as_value
from serve.placement import placed
from serve.tracing import Tracing


@serve.deployment(name="TextNormalizer")
class TextNormalizer:
    """CPU only; as many replicas as the text needs."""

    def __init__(self, versions: Mapping[str, PipelineConfig], tracing: TracingConfig | None = None) -> None:
        """Args:
        versions: version of the model -> what it is; those that differ in nothing the text knows of share a process.
        """
        self._tracing = Tracing(tracing, "TextNormalizer", placed()["replica"])
        made: dict[tuple[object, ...], IsolatedFrontend] = {}
        self._frontends: dict[str, IsolatedFrontend] = {}
        for version, pipeline in versions.items():
            engine, folder = pipeline.engine, resolve(pipeline.checkpoint, cache_home())
            key = (folder, pipeline.text, engine.max_prompt, engine.max_steps)
            if key not in made:
                made[key] = IsolatedFrontend(folder, pipeline.text, max_prompt=engine.max_prompt, max_steps=engine.max_steps)
            self._frontends[version] = made[key]

    async def read(self, version: str, request: SynthesisRequest) -> Script | SynthesisError:
        """See protocols.TextFrontend; errors are values."""
        return await as_value(self._frontends[version].read(request))

    async def compare(self, version: str, plan: SpeechPlan, refined: list[NDArray[np.int64]]) -> list[Refined] | SynthesisError:
        """See protocols.TextFrontend; errors are values."""
        return await as_value(self._frontends[version].compare(plan, refined))

    async def plan(
        self, version: str, request: SynthesisRequest, voices: Mapping[str, Voice], trace: str = ""
    ) -> SpeechPlan | SynthesisError:
        """See protocols.TextFrontend; errors are values. `trace`: see serve/tracing.py."""
        with self._tracing.within(trace, "text.plan"):
            return await as_value(self._frontends[version].plan(request, voices))

    async def replan(
        self,
        version: str,
        request: SynthesisRequest,
        voices: Mapping[str, Voice],
        plan: SpeechPlan,
        refined: list[NDArray[np.int64]],
        trace: str = "",
    ) -> SpeechPlan | SynthesisError:
        """See protocols.TextFrontend; errors are values. `trace`: see serve/tracing.py."""
        with self._tracing.within(trace, "text.replan"):
            return await as_value(self._frontends[version].replan(request, voices, plan, refined))
