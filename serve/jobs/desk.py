"""Desk: everything that clients do with jobs.

In:    bodies, the context of a request, ids
Out:   jobs of the caller; or a refusal
Owns:  nothing: records are in the store, files on the shelf
Never: a job of another key; speaking, which the runner does
"""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline.books.book import Book
from pipeline.books.shelf import Shelf
from pipeline.books.track import Track
from pipeline.errors import AtCapacity, Conflict, StoreFull, StoreUnavailable
from pipeline.store.store import Store
from serve.access.idempotency import checked_key
from serve.config.jobs import JobsConfig
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.jobs.body import JobBody, PartBody
from serve.jobs.document import DocumentReader
from serve.jobs.planning import JobPlan, plan_job, settled_part
from serve.jobs.record import UNFINISHED, JobRecord, JobStatus, Webhook
from serve.jobs.records import Job, JobRecords
from serve.jobs.views import JobLoad, JobView
from serve.jobs.webhooks import checked_webhook
from serve.speech.job import RequestContext
from serve.speech.services import SpeechServices

RETRY_AFTER_S = 60.0
ID_LETTERS = 24
PREFIX = "job-"
ID = re.compile(rf"{PREFIX}[0-9a-f]{{{ID_LETTERS}}}")
WAITING = (JobStatus.QUEUED, JobStatus.RUNNING)
RESUMABLE = (JobStatus.PAUSED, JobStatus.CANCELLED, JobStatus.FAILED)


class JobDesk:
    """The jobs as the clients of one replica see them."""

    def __init__(
        self,
        config: JobsConfig,
        store: Store,
        folder: Path,
        speech: SpeechServices,
        *,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            is_leaving: True once this replica should begin nothing new.
        """
        self.config = config
        self.is_leaving = is_leaving
        self.records = JobRecords(store)
        self.wake: Callable[[], None] = lambda: None
        """told when a job of this replica's clients wants to be spoken"""
        self.documents = DocumentReader()
        self.speech = speech
        self._folder = folder

    def shelf(self, job_id: str) -> Shelf:
        """Returns the files of a job."""
        return Shelf(self._folder / job_id)

    def folders(self) -> list[Path]:
        """Returns the folders of all jobs that have files."""
        return [path for path in self._folder.glob(f"{PREFIX}*") if path.is_dir()]

    def uploads(self) -> list[Path]:
        """Returns the files of batches, which an earlier build had, and their drafts."""
        return [path for pattern in ("file-*.jsonl", ".file-*") for path in self._folder.glob(pattern)]

    async def plan(self, body: JobBody, context: RequestContext, book: Book | None = None) -> JobPlan:
        """Returns what a job would do.

        Args:
            book: what is spoken in place of the body's input.

        Raises:
            InvalidRequest, ApiError
        """
        return await asyncio.to_thread(plan_job, body, context, self.speech, self.config, book)

    async def create(
        self, body: JobBody, context: RequestContext, raw: bytes, book: Book | None = None
    ) -> tuple[Job, JobPlan | None]:
        """Accepts a job and charges for all of its text.

        Args:
            raw: the request, to which its idempotency key belongs.
            book: as for plan().

        Returns:
            the job and its plan; None for the plan of a job that its idempotency key has made before.

        Raises:
            InvalidRequest, ApiError, AtCapacity, StoreFull, StoreUnavailable
        """
        tenant, key = context.caller.id, checked_key(context.idempotency_key)
        job_id = PREFIX + (secrets.token_hex(ID_LETTERS // 2) if key is None else _digest(f"{tenant}\n{key}".encode()))
        request = _digest(raw)
        if key is not None and (known := await asyncio.to_thread(self.records.read, job_id)) is not None:
            return _repeated(known, request), None
        plan = await self.plan(body, context, book)
        asked, hosts = body.webhook, self.config.webhook_hosts
        hook = None if asked is None else checked_webhook(asked.url, asked.secret, hosts)
        return await self.accept(job_id, context, request, plan, hook), plan

    async def accept(self, job_id: str, context: RequestContext, request: str, plan: JobPlan, hook: Webhook | None) -> Job:
        """Accepts what is planned, and charges for all of its text.

        Args:
            request: hash of the request; empty: it cannot be repeated.

        Raises:
            AtCapacity, StoreFull, StoreUnavailable, ApiError
        """
        tenant = context.caller.id
        await asyncio.to_thread(self._check_room, tenant, plan)
        await context.caller.charge_characters(plan.script.characters)
        record = await asyncio.to_thread(self._write, job_id, tenant, request, plan, hook)
        self.wake()
        return Job(job_id, 1, record)

    async def get(self, tenant: str, job_id: str) -> Job:
        """Returns a job of a tenant.

        Raises:
            ApiError: 404
            StoreUnavailable
        """
        found = await asyncio.to_thread(self.records.read, job_id) if ID.fullmatch(job_id) else None
        if found is None or found.record.tenant != tenant or found.record.status is JobStatus.DELETED:
            raise not_found()
        return found

    async def view(self, tenant: str, job_id: str) -> JobView:
        """Returns a job with what is finished of it.

        Raises:
            ApiError: 404
            StoreUnavailable
        """
        return await asyncio.to_thread(self._view, await self.get(tenant, job_id))

    async def load(self) -> JobLoad:
        """Returns how much is to be spoken, and how fast it is.

        Raises:
            StoreUnavailable
        """

        def measure() -> JobLoad:
            records = [job.record for job in self.records.refresh().values() if job.record.status in WAITING]
            backlog_s = sum(record.predicted_s * (1 - record.done / record.parts) for record in records)
            return JobLoad(len(records), backlog_s, sum(record.rate or 0.0 for record in records) or None)

        return await asyncio.to_thread(measure)

    async def listed(self, tenant: str) -> list[Job]:
        """Returns the jobs of a tenant, the newest first.

        Raises:
            StoreUnavailable
        """

        def find() -> list[Job]:
            jobs = self.records.refresh().values()
            own = [job for job in jobs if job.record.tenant == tenant and job.record.status is not JobStatus.DELETED]
            return sorted(own, key=lambda job: (job.record.created_at, job.id), reverse=True)

        return await asyncio.to_thread(find)

    async def pause(self, tenant: str, job_id: str) -> Job:
        """Stops a job until it is resumed; finished parts stay."""
        return await self._move(tenant, job_id, JobStatus.PAUSED, among=WAITING)

    async def resume(self, tenant: str, job_id: str) -> Job:
        """Goes on with a job that was paused, cancelled or has failed: only missing parts are spoken."""
        return await self._move(
            tenant, job_id, JobStatus.QUEUED, among=(JobStatus.PAUSED, JobStatus.CANCELLED, JobStatus.FAILED)
        )

    async def cancel(self, tenant: str, job_id: str) -> Job:
        """Ends a job; finished parts stay until it is deleted."""
        return await self._move(tenant, job_id, JobStatus.CANCELLED, among=UNFINISHED)

    async def speak_again(self, context: RequestContext, job_id: str, number: int, body: PartBody) -> Job:
        """Has one part spoken with another seed or text; all others stay as they are.

        Raises:
            InvalidRequest, ApiError, StoreUnavailable
            Conflict: the job is changed by somebody else at the same moment.
        """
        job = await self.get(context.caller.id, job_id)
        shelf = self.shelf(job_id)
        before = await asyncio.to_thread(shelf.script, job.record.script)
        if number >= len(before.parts):
            raise bad_request("out_of_range", f"the job has parts 0 to {len(before.parts) - 1}", status=404)
        script = before.with_part(number, body.changed(before.parts[number]))
        script = script.with_part(number, settled_part(script, number, context, self.speech))
        await context.caller.charge_characters(script.characters_of(number))

        def change(record: JobRecord) -> JobRecord:
            if record.script != job.record.script:
                raise Conflict("another part of this job was changed at the same moment: send it again")
            status = record.status if record.status in UNFINISHED else JobStatus.QUEUED
            fields = {"script": name, "status": status, "result": "", "changed_at": self.records.now(), "error": None}
            return record.model_copy(update={**fields, "predicted_s": sum(script.predicted_s)})

        name = await asyncio.to_thread(shelf.keep_script, script)
        changed = await asyncio.to_thread(self.records.change, job_id, change)
        self.wake()  # it may be running, or finished, before the next look
        return await self.get(context.caller.id, job_id) if changed is None else Job(job_id, job.version + 1, changed)

    async def delete(self, tenant: str, job_id: str) -> None:
        """Removes a job and everything that was made for it."""
        await self.get(tenant, job_id)
        await asyncio.to_thread(self.remove, job_id)

    def remove(self, job_id: str) -> None:
        """Removes a job, whatever a crash left of it: first it is marked, so that a crash meanwhile leaves work, not waste."""
        self.records.move(job_id, JobStatus.DELETED, among=tuple(JobStatus))
        self.shelf(job_id).remove()
        self.records.remove(job_id)

    async def _move(self, tenant: str, job_id: str, to: JobStatus, *, among: tuple[JobStatus, ...]) -> Job:
        job = await self.get(tenant, job_id)
        if job.record.status is not to:
            if await asyncio.to_thread(self.records.move, job_id, to, among=among) is None:
                names = ", ".join(among)
                raise Conflict(f"the job is {job.record.status.value}; this is for jobs that are {names}")
            job = await self.get(tenant, job_id)
        self.wake()
        return job

    def used(self) -> int:
        """Returns how many bytes all files have, with those that unfinished jobs are expected to need."""
        return sum(job.record.size for job in self.records.refresh().values())

    def _check_room(self, tenant: str, plan: JobPlan) -> None:
        records = [job.record for job in self.records.refresh().values()]
        waiting = [record.tenant for record in records if not record.is_finished]
        if len(waiting) >= self.config.max_jobs:
            raise AtCapacity(f"{self.config.max_jobs} jobs are not finished (jobs.max_jobs)", retry_after_s=RETRY_AFTER_S)
        if waiting.count(tenant) >= self.config.max_jobs_per_key:
            most = self.config.max_jobs_per_key
            message = f"{most} jobs of this key are not finished (jobs.max_jobs_per_key): wait, or cancel one"
            raise AtCapacity(message, retry_after_s=RETRY_AFTER_S)
        used, budget = self.used(), self.config.disk_mib << 20
        if used + plan.size > budget:
            free = max(0, budget - used) >> 20
            raise StoreFull(
                f"the job needs about {plan.size >> 20} MiB, and {free} of {self.config.disk_mib} MiB (jobs.disk_mib) are "
                "free: delete jobs, or send a shorter one"
            )

    def _write(self, job_id: str, tenant: str, request: str, plan: JobPlan, hook: Webhook | None) -> JobRecord:
        script, now, shelf = plan.script, self.records.now(), self.shelf(job_id)
        try:
            if plan.cover:
                script = replace(script, cover=shelf.keep_cover(plan.cover))
            name = shelf.keep_script(script)
        except OSError as error:
            message = f"the text of the job cannot be written: {error.strerror}; try again"
            raise StoreUnavailable(message, place=str(self._folder)) from error
        record = JobRecord(
            tenant=tenant,
            status=JobStatus.QUEUED,
            created_at=now,
            changed_at=now,
            script=name,
            request=request,
            output=plan.output,
            title=script.title,
            model=script.speech["model"],
            voice=script.speech["voice"],
            seed=script.speech["seed"],
            parts=len(script.parts),
            characters=script.characters,
            predicted_s=plan.predicted_s,
            size=plan.size,
            webhook=hook,
        )
        self.records.create(job_id, record)
        return record

    def _view(self, job: Job) -> JobView:
        shelf, rate = self.shelf(job.id), job.record.output.sample_rate
        try:
            script = shelf.script(job.record.script)
        except FileNotFoundError:
            raise StoreUnavailable(
                "the files of this job are not on this machine (jobs.folder)", place=str(shelf.folder)
            ) from None
        lengths = shelf.lengths()
        audio_s = sum(lengths[key] for key in script.keys if key in lengths) / rate
        return JobView(job, script, Track(script, lengths, rate), lengths, audio_s)


def not_found() -> ApiError:
    """Returns the refusal of a job that this caller does not have."""
    message = "no such job; GET /v1/audio/jobs lists yours"
    return ApiError(message, ErrorSpec(404, "not_found_error", "job_not_found", False), param="job_id")


def _repeated(known: Job, request: str) -> Job:
    if known.record.request != request:
        message = "this Idempotency-Key was sent with another body; a new request takes a new key"
        raise ApiError(message, ErrorSpec(409, "conflict_error", "idempotency_mismatch", False))
    return known


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:ID_LETTERS]
