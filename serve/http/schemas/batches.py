"""Batch schemas: the bodies of requests and replies about batches and files, in OpenAI's shape.

In:    JSON; views of batches, records of files
Out:   models
Owns:  nothing
Never: the text of a request
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from serve.jobs.batches import BatchView
from serve.jobs.files import FileRecord
from serve.jobs.record import BatchNote, JobStatus
from serve.speech.schemas.base import Body

INPUT, OUTPUT = "batch", "batch_output"
"""purposes of files"""

BatchStatus = Literal["in_progress", "finalizing", "completed", "failed", "cancelled"]
STATUS: dict[JobStatus, BatchStatus] = {
    JobStatus.QUEUED: "in_progress",
    JobStatus.RUNNING: "in_progress",
    JobStatus.PAUSED: "in_progress",
    JobStatus.SUCCEEDED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "cancelled",
}

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class BatchBody(Body):
    """POST /v1/batches."""

    input_file_id: str = Field(max_length=64, description="of an uploaded file of JSON lines")
    endpoint: str = Field(max_length=64, description="/v1/audio/speech")
    completion_window: Literal["24h"] = Field("24h", description="a batch is spoken when there is room, however long it takes")
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None

    def note(self) -> BatchNote:
        """Returns it as it is kept."""
        return BatchNote(**self.model_dump())


class FileReply(BaseModel):
    """A file."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str = "processed"


class FileList(BaseModel):
    """GET /v1/files."""

    object: str = "list"
    data: list[FileReply]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    """DELETE /v1/files/{id}."""

    id: str
    object: str = "file"
    deleted: bool = True


class RequestCounts(BaseModel):
    """How far a batch is."""

    total: int
    completed: int
    failed: int


class BatchReply(BaseModel):
    """A batch."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: dict[str, Any] | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    """GET /v1/batches."""

    object: str = "list"
    data: list[BatchReply]
    first_id: str | None
    last_id: str | None
    has_more: bool


def file_reply(file_id: str, record: FileRecord, keep_s: float) -> FileReply:
    """Returns an uploaded file."""
    created = int(record.created_at)
    expires = int(record.created_at + keep_s)
    return FileReply(
        id=file_id, bytes=record.bytes, created_at=created, expires_at=expires, filename=record.filename, purpose=INPUT
    )


def batch_reply(view: BatchView) -> BatchReply:
    """Returns a batch with what is finished of it."""
    record, note = view.job.record, view.job.record.batch
    assert note is not None, "only batches have views of batches"
    status = STATUS[record.status]
    if record.status is JobStatus.RUNNING and len(view.lengths) == len(set(view.script.keys)):
        status = "finalizing"
    changed, created = int(record.changed_at), int(record.created_at)
    errors = None
    if record.error is not None:
        errors = {"object": "list", "data": [{"code": record.error.code, "message": record.error.message}]}
    return BatchReply(
        id=view.id,
        endpoint=note.endpoint,
        errors=errors,
        input_file_id=note.input_file_id,
        completion_window=note.completion_window,
        status=status,
        output_file_id=view.file_id("output"),
        error_file_id=view.file_id("error"),
        created_at=created,
        in_progress_at=created,
        completed_at=changed if status == "completed" else None,
        failed_at=changed if status == "failed" else None,
        cancelling_at=changed if status == "cancelled" else None,
        cancelled_at=changed if status == "cancelled" else None,
        request_counts=RequestCounts(total=len(view.script.keys), completed=view.completed, failed=view.failed),
        metadata=note.metadata,
    )
