"""Record: what the store knows of one job.

In:    JSON
Out:   JobRecord
Never: the text of a job, its audio: they are on disk (pipeline/books/job_files.py)
"""

import json
from enum import StrEnum

from pydantic import ValidationError

from pipeline.audio.formats import AudioFormat
from pipeline.config import StrictModel


class JobStatus(StrEnum):
    """What becomes of a job now."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ACCEPTING = "accepting"
    """its id is taken; its characters are being charged, its text is being written; no client sees it yet"""
    DELETED = "deleted"
    """its files are being removed; no client sees it any more"""


UNFINISHED = (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.PAUSED)
HIDDEN = (JobStatus.ACCEPTING, JobStatus.DELETED)


class JobError(StrictModel):
    """Why a job failed."""

    code: str
    message: str
    part: int | None = None
    """the part that could not be spoken"""


class Output(StrictModel):
    """The file that is made of a finished job."""

    container: str
    sample_rate: int
    kbps: int | None = None

    @property
    def audio(self) -> AudioFormat:
        """The format of its samples."""
        return AudioFormat(self.container, self.sample_rate, self.kbps)


class Webhook(StrictModel):
    """Who is told when a job ends, and what was told."""

    url: str
    secret: str
    end: str = ""
    """the end that the fields below are about"""
    attempts: int = 0
    next_at: float = 0.0
    """when it is tried again; seconds since 1970"""
    is_told: bool = False
    """told, or given up"""


class JobRecord(StrictModel):
    """A long text that is synthesised in the background, part by part: its state; everything else is in its files."""

    tenant: str
    """id of the key that it belongs to"""
    status: JobStatus
    created_at: float
    changed_at: float
    """by a client or by its end; seconds since 1970, as above"""
    script: str
    """name of what is spoken; empty: it is not written yet"""
    request: str = ""
    """hash of the request that made it"""
    output: Output
    title: str = ""
    model: str
    voice: str
    seed: int
    parts: int
    characters: int
    predicted_s: float
    """of audio"""
    size: int
    """of its files; expected until it has finished [bytes]"""
    done: int = 0
    """finished parts, as its runner last said"""
    rate: float | None = None
    """seconds of audio per second, as its runner measures it"""
    build: str = ""
    """of the replica that accepted or speaks it: a hash of what makes its bytes; empty: not known"""
    holder: str = ""
    """the runner that speaks it, or who accepts it"""
    beat: int = 0
    """raised by its holder again and again: one that stands still has no holder any more"""
    waiting_for: str = ""
    """what its runner lacks to go on: `disk`, or the code of what refused its next part; empty: nothing"""
    result: str = ""
    """name of its finished file"""
    error: JobError | None = None
    webhook: Webhook | None = None

    @property
    def is_finished(self) -> bool:
        """True if nothing more is spoken unless a client asks for it."""
        return self.status not in (*UNFINISHED, JobStatus.ACCEPTING)

    def to_json(self) -> bytes:
        """Returns the record as bytes of the store."""
        return self.model_dump_json(exclude_defaults=True).encode()


def read_record(content: bytes) -> JobRecord:
    """Returns the record of bytes.

    A batch, which an earlier build had, belongs to nobody and has ended, so that upkeep removes it when it is old.

    Raises:
        ValueError: they are none.
    """
    try:
        if b'"batch"' in content and isinstance(fields := json.loads(content), dict) and fields.pop("batch", None):
            return JobRecord.model_validate({**fields, "tenant": "", "status": JobStatus.CANCELLED})
        return JobRecord.model_validate_json(content)
    except ValidationError as error:
        raise ValueError(f"no record of a job: {error.error_count()} mistakes") from None
