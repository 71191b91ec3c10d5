"""Jobs config: the section `jobs:` of the args.

Out:   JobsConfig, frozen
Never: Ray
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipeline.config import StrictModel
from serve.config.hosts import host_and_port, is_near

WebhookHost = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[1-9][0-9]{0,4})?$")]


class JobsConfig(StrictModel):
    """Long texts that are spoken in the background, at /v1/audio/jobs. Their records are in voices.store."""

    folder: str | None = Field(
        None,
        description="where their texts and audio are kept; with several nodes a folder that all of them share; null: jobs in "
        "$CHATTTS_HOME",
    )
    parallel: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = Field(
        2,
        description="parts that one ingress replica speaks at once; 0: none; auto: as many as fill the engines, a quarter of "
        "their slots kept free",
    )
    max_chars: int = Field(1_000_000, ge=1, le=16_000_000, description="longest text of a job [characters]")
    max_jobs: int = Field(10_000, ge=0, le=1_000_000, description="jobs that are not finished; 0: no jobs are accepted")
    max_jobs_per_key: int = Field(100, ge=1, le=1_000_000, description="jobs of one key that are not finished")
    keep_s: float = Field(
        604_800.0, ge=15, le=31_536_000, description="how long a job and its audio are kept after its last change [s]"
    )
    webhook_hosts: tuple[WebhookHost, ...] = Field(
        (),
        description="`host` or `host:port`, in lower case, to which clients may have the end of a job told; without a port: "
        "443 for https, 80 for http; empty: none",
    )
    webhook_near_hosts: tuple[WebhookHost, ...] = Field(
        (), description="those of webhook_hosts that may be an address of this machine, of its link, or of a cloud's metadata"
    )
    disk_mib: int = Field(
        10_240, ge=1, le=1 << 30, description="disk space for all jobs, with what unfinished ones are expected to need [MiB]"
    )

    lease_s: ClassVar[float] = 15.0
    """without a sign of the replica that speaks a job, after which another one goes on: no replica is silent so long"""

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a job: a book with its pictures, or the longest text in UTF-8."""
        return max(16 << 20, 4 * self.max_chars)

    @model_validator(mode="after")
    def _check_hosts(self) -> Self:
        for name in self.webhook_hosts:
            if is_near(host_and_port(name)[0]) and name not in self.webhook_near_hosts:
                raise ValueError(
                    f"webhook_hosts has {name}, an address of this machine, its link or its cloud's metadata: say it in "
                    "webhook_near_hosts too"
                )
        if unknown := [name for name in self.webhook_near_hosts if name not in self.webhook_hosts]:
            raise ValueError(f"webhook_near_hosts has {unknown[0]}, which webhook_hosts has not")
        return self
