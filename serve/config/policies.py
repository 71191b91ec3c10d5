"""Policies: the settings of degradation and autoscaling.

In:    the section `degrade:` of the args, the `policy_kwargs:` of an autoscaling policy
Out:   DegradeConfig, StepBacklogConfig, frozen
Owns:  the names of the degradation steps and their order
Never: Ray; the policies themselves (serve/resilience)
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from pipeline.config import StrictModel

VersionId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}@[a-z0-9][a-z0-9._-]{0,31}$")]

STEP_BACKLOG_POLICY = "serve.resilience.autoscaling:StepBacklogPolicy"


class DegradationStep(StrEnum):
    """One simplification under load. All except the refusals change samples, if only by rounding."""

    REFINE = "refine"
    """the refine pass is left out"""
    DENOISE = "denoise"
    """audio is not denoised"""
    EXPRESSION = "expression"
    """oral, laugh and break by markup alone: the refine pass adds none, a plain text has them only with allow_control_tags"""
    FIRST_CHUNK = "first_chunk"
    """the smallest chunks are skipped: fewer windows, first audio a little later"""
    SEGMENTS = "segments"
    """segments are half as long, so that slots become free sooner"""
    VERSION = "version"
    """degrade.version answers requests that name no version"""
    SHORTEST_SEGMENTS = "shortest_segments"
    """segments of eight characters or three words at least"""
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
