"""Policies: the settings of circuit breaker, quarantine, degradation and autoscaling.

In:    the sections `breaker:`, `quarantine:` and `degrade:` of the args, the `policy_kwargs:` of an autoscaling policy
Out:   BreakerConfig, QuarantineConfig, DegradeConfig, StepBacklogConfig, frozen
Owns:  the names of the degradation steps and their order
Never: Ray, torch; the policies themselves (serve/resilience)
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from pipeline.config import StrictModel

VersionId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}@[a-z0-9][a-z0-9._-]{0,31}$")]

STEP_BACKLOG_POLICY = "serve.resilience.autoscaling:StepBacklogPolicy"


class BreakerConfig(StrictModel):
    """When calls of a failing stage are refused at once."""

    min_failures: int = Field(5, ge=1, le=10_000, description="calls that must fail within window_s before the breaker opens")
    failure_ratio: float = Field(0.5, gt=0, le=1, description="share of the calls within window_s that must also fail")
    window_s: float = Field(10.0, gt=0, le=600, description="how long a failure counts [s]")
    open_s: float = Field(2.0, gt=0, le=600, description="time between two trial calls while the breaker is open [s]")
    silence_s: float = Field(
        3.0, gt=0, le=600, description="time without progress in any call of a stage after which its replicas are probed [s]"
    )


class QuarantineConfig(StrictModel):
    """How long a request that crashes replicas is refused."""

    duration_s: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="how long a request is refused after it crashed two replicas, and a crash is remembered [s]",
    )


class DegradationStep(StrEnum):
    """One simplification under load. All except the refusals change samples, if only by rounding."""

    REFINE = "refine"
    """the refine pass is left out"""
    DENOISE = "denoise"
    """audio is not denoised"""
    FIRST_CHUNK = "first_chunk"
    """the smallest chunks are skipped: fewer windows, first audio a little later"""
    SEGMENTS = "segments"
    """segments are half as long, so that slots become free sooner"""
    VERSION = "version"
    """degrade.version answers requests that name no version"""
    BULK = "bulk"
    """the bulk lane is refused"""
    ALL = "all"
    """every request is refused"""


REFUSALS = (DegradationStep.BULK, DegradationStep.ALL)
EASING = tuple(step for step in DegradationStep if step not in REFUSALS)


class DegradeConfig(StrictModel):
    """Which simplifications apply under load, and when."""

    steps: tuple[DegradationStep, ...] = Field(
        (
            DegradationStep.REFINE,
            DegradationStep.DENOISE,
            DegradationStep.FIRST_CHUNK,
            DegradationStep.SEGMENTS,
            DegradationStep.BULK,
        ),
        description="simplifications in the order in which they are applied; empty: none",
    )
    version: VersionId | None = Field(None, description="the lighter model version that the step `version` switches to")
    seeded: bool = Field(False, description="true: requests with a seed of their own are degraded too and sound different")
    escalate_above: float = Field(
        0.8, gt=0, le=1, description="share of capacity or of the engine's queue in use that adds one step"
    )
    recover_below: float = Field(0.5, ge=0, lt=1, description="share in use at or below which one step is removed")
    rtf: float = Field(
        0.8,
        gt=0,
        le=10,
        description="real-time factor that adds one step, but never a refusal [s per second of audio]",
    )
    escalate_after_s: float = Field(5.0, gt=0, le=3600, description="how long the load must be high before a step is added [s]")
    recover_after_s: float = Field(30.0, gt=0, le=3600, description="how long it must be low before a step is removed [s]")

    @model_validator(mode="after")
    def _there_is_a_gap(self) -> "DegradeConfig":
        if self.recover_below >= self.escalate_above:
            raise ValueError(
                f"recover_below {self.recover_below:g} must lie below escalate_above {self.escalate_above:g}, "
                "or the level would never settle"
            )
        return self

    @field_validator("steps")
    @classmethod
    def _each_once(cls, steps: tuple[DegradationStep, ...]) -> tuple[DegradationStep, ...]:
        if len(set(steps)) != len(steps) or [step for step in DegradationStep if step in steps] != list(steps):
            raise ValueError(f"name each step once, in this order: {', '.join(DegradationStep)}")
        return steps


class StepBacklogConfig(StrictModel):
    """The `policy_kwargs:` of StepBacklogPolicy."""

    utilisation: float = Field(
        0.75, gt=0, le=1, description="target share of a replica in use; the rest absorbs load while another replica starts"
    )
    wait_s: float = Field(1.0, gt=0, description="time in which the replicas should finish the waiting work [s]")
