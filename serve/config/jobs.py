"""Jobs config: the section `jobs:` of the args.

In:    nothing
Out:   JobsConfig, frozen
Owns:  nothing
Never: Ray, torch
"""

from typing import Annotated

from pydantic import Field

from pipeline.config import StrictModel

WebhookHost = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]


class JobsConfig(StrictModel):
    """Long texts that are spoken in the background, at /v1/audio/jobs. Their records are in voices.store."""

    folder: str | None = Field(
        None,
        description="where their texts and audio are kept; with several nodes a folder that all of them share; null: jobs in "
        "$CHATTTS_HOME",
    )
    parallel: int = Field(
        2, ge=0, le=256, description="parts that one ingress replica speaks at once; 0: jobs wait for other replicas"
    )
    lease_s: float = Field(
        15.0,
        ge=0.5,
        le=600,
        description="time without a sign of the replica that speaks a job after which another one goes on [s]",
    )
    max_chars: int = Field(1_000_000, ge=1, le=20_000_000, description="longest text of a job [characters]")
    max_body_bytes: int = Field(16 << 20, ge=1024, le=1 << 30, description="largest body of a job [bytes]")
    max_jobs: int = Field(10_000, ge=0, le=1_000_000, description="jobs that are not finished; 0: no jobs are accepted")
    max_jobs_per_key: int = Field(100, ge=1, le=1_000_000, description="jobs of one key that are not finished")
    keep_s: float = Field(
        604_800.0, ge=1, le=31_536_000, description="how long a job and its audio are kept after its last change [s]"
    )
    webhook_hosts: tuple[WebhookHost, ...] = Field(
        (), description="hosts, in lower case and without a port, to which clients may have the end of a job told; empty: none"
    )
    disk_mib: int = Field(
        10_240, ge=1, le=1 << 30, description="disk space for all jobs, with what unfinished ones are expected to need [MiB]"
    )
