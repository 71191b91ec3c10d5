"""Batches: many requests for speech in one file, as OpenAI's clients send them. A batch is a job with a part for each line.

In:    ids of files, the context of a request
Out:   batches of the caller, and the files that are made of them; or a refusal
Owns:  the ids of batches and of their files
Never: a batch or a file of another key
"""

import asyncio
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.books.script import Script
from pipeline.errors import AtCapacity, Conflict, StoreFull
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.jobs.batch_lines import ENDPOINT, plan_batch
from serve.jobs.batch_output import batch_archive, error_lines, output_lines
from serve.jobs.desk import ID_LETTERS, PREFIX, RETRY_AFTER_S, JobDesk
from serve.jobs.files import FileRecord, no_such_file
from serve.jobs.record import UNFINISHED, BatchNote, JobStatus
from serve.jobs.records import Job
from serve.speech.job import RequestContext

BATCH = "batch_"
Kind = Literal["output", "error"]
_ID = re.compile(rf"{BATCH}([0-9a-f]{{{ID_LETTERS}}})")
_MADE = re.compile(rf"file-(output|error)-([0-9a-f]{{{ID_LETTERS}}})")


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch with what is finished of it."""

    job: Job
    script: Script
    lengths: Mapping[str, int]
    """samples of the lines that were answered, by their keys; 0: the line was refused"""

    @property
    def id(self) -> str:
        """The batch's own id."""
        return batch_id_of(self.job)

    @property
    def completed(self) -> int:
        """Lines that were spoken."""
        return sum(self.lengths.get(key, 0) > 0 for key in self.script.keys)

    @property
    def failed(self) -> int:
        """Lines that were refused."""
        return sum(self.lengths.get(key) == 0 for key in self.script.keys)

    @property
    def is_cancelled(self) -> bool:
        """True if lines are missing that will not be spoken."""
        return self.job.record.status is JobStatus.CANCELLED

    def file_id(self, kind: Kind) -> str | None:
        """Returns the id of a file that is made of it; None: there is none, or not yet."""
        if self.job.record.status in UNFINISHED:
            return None
        unspoken = len(self.script.keys) - self.completed if self.is_cancelled else self.failed
        lines = self.completed if kind == "output" else unspoken
        return f"file-{kind}-{self.job.id.removeprefix(PREFIX)}" if lines else None


def batch_id_of(job: Job) -> str:
    """Returns the id of a batch, as clients know it."""
    return BATCH + job.id.removeprefix(PREFIX)


class BatchDesk:
    """The batches and files as the clients of one replica see them."""

    def __init__(self, desk: JobDesk) -> None:
        self._desk = desk

    # -- files ---------------------------------------------------------------------------------------------------------

    async def add_file(self, tenant: str, filename: str, content: bytes) -> tuple[str, FileRecord]:
        """Keeps an uploaded file.

        Raises:
            AtCapacity, StoreFull, StoreUnavailable
        """

        def add() -> tuple[str, FileRecord]:
            config, known = self._desk.config, self._desk.files.all().values()
            if sum(record.tenant == tenant for record in known) >= config.max_jobs_per_key:
                message = f"this key has {config.max_jobs_per_key} files (jobs.max_jobs_per_key): delete one"
                raise AtCapacity(message, retry_after_s=RETRY_AFTER_S)
            if self._desk.used() + len(content) > config.disk_mib << 20:
                raise StoreFull(f"{config.disk_mib} MiB (jobs.disk_mib) are full: delete jobs, batches or files")
            return self._desk.files.add(tenant, filename, content)

        return await asyncio.to_thread(add)

    async def files(self, tenant: str) -> dict[str, FileRecord]:
        """Returns the uploaded files of a tenant by their ids, the newest first."""
        found = await asyncio.to_thread(self._desk.files.all)
        own = [(file_id, record) for file_id, record in found.items() if record.tenant == tenant]
        return dict(sorted(own, key=lambda one: (one[1].created_at, one[0]), reverse=True))

    async def made_of(self, tenant: str, file_id: str) -> tuple[BatchView, Kind] | None:
        """Returns the batch of a file that was made of it; None: it is an uploaded one.

        Raises:
            ApiError: 404
        """
        found = _MADE.fullmatch(file_id)
        if found is None:
            return None
        kind: Kind = "output" if found[1] == "output" else "error"
        try:
            view = await self.get(tenant, BATCH + found[2])
        except ApiError:
            raise no_such_file() from None
        if view.file_id(kind) is None:
            raise no_such_file()
        return view, kind

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Removes an uploaded file; with a file that was made of a batch, the batch and all of its audio.

        Raises:
            ApiError: 404
        """
        made = await self.made_of(tenant, file_id)
        if made is not None:
            await asyncio.to_thread(self._desk.remove, made[0].job.id)
            return
        await asyncio.to_thread(self._desk.files.get, tenant, file_id)
        await asyncio.to_thread(self._desk.files.remove, file_id)

    async def content(self, tenant: str, file_id: str) -> Iterator[bytes]:
        """Returns the content of a file, in pieces.

        Raises:
            ApiError: 404
        """
        made = await self.made_of(tenant, file_id)
        if made is None:
            return iter((await asyncio.to_thread(self._desk.files.content, tenant, file_id),))
        view, kind = made
        return self.lines(view, kind)

    def lines(self, view: BatchView, kind: Kind) -> Iterator[bytes]:
        """Yields the lines of a file that is made of a batch."""
        shelf = self._desk.shelf(view.job.id)
        if kind == "output":
            return output_lines(shelf, view.script)
        return error_lines(shelf, view.script, is_cancelled=view.is_cancelled)

    def archive(self, view: BatchView) -> Iterator[bytes]:
        """Yields a ZIP with the audio of a batch, as far as it is finished."""
        return batch_archive(self._desk.shelf(view.job.id), view.script)

    # -- batches -------------------------------------------------------------------------------------------------------

    async def create(self, context: RequestContext, note: BatchNote) -> BatchView:
        """Accepts a batch, and charges for the text of all lines that can be spoken.

        Raises:
            ApiError, InvalidRequest, AtCapacity, StoreFull, StoreUnavailable
        """
        if note.endpoint != ENDPOINT:
            raise bad_request("out_of_range", f"endpoint is {ENDPOINT}", param="endpoint")
        content = await asyncio.to_thread(self._desk.files.content, context.caller.id, note.input_file_id)
        speech, config = self._desk.speech, self._desk.config
        plan = await asyncio.to_thread(plan_batch, content, context, speech, config)
        job_id = PREFIX + secrets.token_hex(ID_LETTERS // 2)
        job = await self._desk.accept(job_id, context, "", replace(plan, batch=note), None)
        return await asyncio.to_thread(self._view, job)

    async def get(self, tenant: str, batch_id: str) -> BatchView:
        """Returns a batch of a tenant.

        Raises:
            ApiError: 404
        """
        found = _ID.fullmatch(batch_id)
        job = await asyncio.to_thread(self._desk.records.read, PREFIX + found[1]) if found else None
        if job is None or job.record.tenant != tenant or job.record.batch is None or job.record.status is JobStatus.DELETED:
            message = "no such batch; GET /v1/batches lists yours"
            raise ApiError(message, ErrorSpec(404, "not_found_error", "batch_not_found", False), param="batch_id")
        return await asyncio.to_thread(self._view, job)

    async def listed(self, tenant: str) -> list[Job]:
        """Returns the batches of a tenant, the newest first."""
        return [job for job in await self._desk.owned(tenant) if job.record.batch is not None]

    async def view(self, job: Job) -> BatchView:
        """Returns a batch with what is finished of it."""
        return await asyncio.to_thread(self._view, job)

    async def cancel(self, tenant: str, batch_id: str) -> BatchView:
        """Ends a batch; what is spoken stays.

        Raises:
            ApiError: 404
            Conflict: it has ended.
        """
        view = await self.get(tenant, batch_id)
        records = self._desk.records
        if not view.is_cancelled and (
            await asyncio.to_thread(records.move, view.job.id, JobStatus.CANCELLED, among=UNFINISHED) is None
        ):
            raise Conflict("the batch has ended; it cannot be cancelled any more")
        self._desk.wake()
        return await self.get(tenant, batch_id)

    def _view(self, job: Job) -> BatchView:
        shelf = self._desk.shelf(job.id)
        return BatchView(job, shelf.script(job.record.script), shelf.lengths())
