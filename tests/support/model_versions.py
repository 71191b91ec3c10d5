"""Three versions of one model and one of another, and a rollout over them."""

from pipeline.config import PipelineConfig
from serve.config.model_versions import ModelConfig, RoutesConfig, versions_of
from serve.resilience.rollout import Rollout
from tests.support.clock import HeldClock

V1, V2, V3 = "chattts@v1", "chattts@v2", "chattts@v3"
VERSIONS = versions_of(PipelineConfig(), {V1: ModelConfig(), V2: ModelConfig(), V3: ModelConfig(), "small@v1": ModelConfig()})


def rollout(clock: HeldClock | None = None, /, **weights: float) -> Rollout:
    """Weights of the versions of `chattts`, by the part of the id after the @."""
    result = Rollout(VERSIONS, clock=clock or HeldClock(0.0))
    result.configure(RoutesConfig(weights={f"chattts@{version}": weight for version, weight in weights.items()}))
    return result
