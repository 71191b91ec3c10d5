"""Job service: everything that clients do with jobs.

In:    bodies, the context of a request, ids
Out:   jobs of the caller; or a refusal
Owns:  nothing: records are in the store, files on the disk
Never: a job of another key; speaking, which the runner does
"""

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pipeline.books.job_files import JobFiles
from pipeline.books.track import Track
from pipeline.errors import AtCapacity, Conflict, StoreUnavailable
from pipeline.store.store import Store
from pipeline.store.threads import ask_store
from serve.access.idempotency import checked_key
from serve.access.quotas import DAY_S, Charge
from serve.config.jobs import JobsConfig
from serve.errors import ApiError, ErrorSpec
from serve.jobs.body import File, JobBody, PartBody
from serve.jobs.document import DOCUMENTS
from serve.jobs.intake import Intake
from serve.jobs.planning import JobPlan, plan_job
from serve.jobs.record import HIDDEN, UNFINISHED, JobRecord, JobStatus
from serve.jobs.records import Job, JobRecords
from serve.jobs.revisions import Revisions, not_found
from serve.jobs.views import JobLoad, JobView
from serve.jobs.webhooks import checked_webhook
from serve.speech.job import RequestContext
from serve.speech.speech_services import SpeechServices

LOOK_S = 0.05
ACCEPTING_S = 10.0
"""how long a request waits for an equal one"""
CLAIM_S = 60.0
"""a claim of an id that is older is one that a crash has left"""
ID_LETTERS = 24
PREFIX = "job-"
ID = re.compile(rf"{PREFIX}[0-9a-f]{{{ID_LETTERS}}}")
PLANNERS = ThreadPoolExecutor(2, "plans")  # 30,000 parts of SSML take ten seconds, in which others need the threads of the loop
WAITING = (JobStatus.QUEUED, JobStatus.RUNNING)
RESUMABLE = (JobStatus.PAUSED, JobStatus.CANCELLED, JobStatus.FAILED)


class JobService:
    """The jobs of one replica: their records, and their files."""

    def __init__(
        self,
        config: JobsConfig,
        store: Store,
        folder: Path,
        speech: SpeechServices,
        *,
        is_leaving: Callable[[], bool] = lambda: False,
        build: Callable[[str], str] = lambda model: "",
    ) -> None:
        """
        Args:
            is_leaving: True once this replica should begin nothing new.
            build: version of the model -> hash of what makes its bytes in this replica; empty: it has no such version.
        """
        self.config = config
        self.is_leaving = is_leaving
        self.records = JobRecords(store)
        self.wake: Callable[[], None] = lambda: None
        """told when a job of this replica's clients wants to be spoken"""
        self.waiting_for_disk = 0
        """how many jobs of this replica's runner cannot go on because the disk is full"""
        self.queued_s = 0.0
        """age of the oldest job that waits for a runner"""
        self.documents = DOCUMENTS
        self.speech = speech
        self.build = build
        self._folder = folder
        self.intake = Intake(config, self.records, self.files)
        self.revisions = Revisions(self.intake, self.records, self.files, speech)

    def of(self, context: RequestContext) -> "JobsOf":
        """Returns the jobs of the caller of a request."""
        return JobsOf(self, context)

    def files(self, job_id: str) -> JobFiles:
        """Returns the files of a job."""
        return JobFiles(self._folder / job_id)

    def folders(self) -> list[Path]:
        """Returns the folders of all jobs that have files."""
        return [path for path in self._folder.glob(f"{PREFIX}*") if path.is_dir()]

    def has_files(self, job: Job) -> bool:
        """True if what a job speaks is on this machine, and this release can read it."""
        try:
            return bool(self.files(job.id).script(job.record.script).parts)
        except (OSError, ValueError):
            return False

    def uploads(self) -> list[Path]:
        """Returns the files of batches, which an earlier build had, and their drafts."""
        return [path for pattern in ("file-*.jsonl", ".file-*") for path in self._folder.glob(pattern)]

    async def load(self) -> JobLoad:
        """Returns how much is to be spoken, and how fast it is.

        Raises:
            StoreUnavailable
        """

        def measure() -> JobLoad:
            records = [job.record for job in self.records.refresh().values() if job.record.status in WAITING]
            backlog_s = sum(record.predicted_s * (1 - record.done / record.parts) for record in records)
            return JobLoad(len(records), backlog_s, sum(record.rate or 0.0 for record in records) or None)

        return await ask_store(measure)

    async def clear(self, job: Job) -> None:
        """Removes what is left of a job, if nobody has changed it since; of one that was never queued takes the charge back.

        Raises:
            StoreUnavailable
        """
        record = job.record
        owner = None if record.script else self.speech.owner(record.tenant)
        if await ask_store(partial(self.remove, job, if_unchanged=True)) and owner is not None:
            owner.settle(Charge(record.characters, int(record.created_at // DAY_S), record.holder))

    def remove(self, job: Job, *, if_unchanged: bool = False) -> bool:
        """Removes a job, whatever a crash left of it: first it is marked, so that a crash meanwhile leaves work, not waste.

        Args:
            if_unchanged: not if a client has changed it since.

        Returns:
            False if it is another one by now.

        Raises:
            StoreUnavailable
        """

        def deleted(record: JobRecord) -> JobRecord | None:
            if if_unchanged and (record.status, record.changed_at) != (job.record.status, job.record.changed_at):
                return None
            return record.model_copy(update={"status": JobStatus.DELETED, "holder": remover, "changed_at": self.records.now()})

        remover = secrets.token_hex(8) if job.record.script else job.record.holder  # the token of its charge
        if self.records.change(job.id, deleted) is None:
            return False
        self.files(job.id).remove()
        current = self.records.read(job.id)
        if current is not None and current.record.holder == remover:  # else somebody else removes it, or its id is used again
            self.records.remove(job.id)
        return True


class JobsOf:
    """The jobs of one caller: everything that a client does with them."""

    def __init__(self, service: JobService, context: RequestContext) -> None:
        self._service = service
        self._context = context
        self.keep_s = service.config.keep_s
        """how long a job is kept after its last change"""
        self.max_body_bytes = service.config.max_body_bytes
        """of a request that makes one, its file included"""

    async def get(self, job_id: str) -> Job:
        """Returns a job.

        Raises:
            ApiError: 404
            StoreUnavailable
        """
        job = await ask_store(self._service.records.read, job_id) if ID.fullmatch(job_id) else None
        if job is None or job.record.tenant != self._context.caller.id or job.record.status in HIDDEN:
            raise not_found()
        return job

    async def view(self, job_id: str) -> JobView:
        """Returns a job with what is finished of it.

        Raises:
            ApiError: 404
            StoreUnavailable
        """
        return await asyncio.to_thread(self._view, await self.get(job_id))

    async def listed(self) -> list[Job]:
        """Returns all of them, the newest first.

        Raises:
            StoreUnavailable
        """

        def find() -> list[Job]:
            jobs = self._service.records.refresh().values()
            own = [job for job in jobs if job.record.tenant == self._context.caller.id and job.record.status not in HIDDEN]
            return sorted(own, key=lambda job: (job.record.created_at, job.id), reverse=True)

        return await ask_store(find)

    async def plan(self, body: JobBody, file: File | None = None) -> JobPlan:
        """Returns what a job would do.

        Args:
            file: what is spoken in place of the body's input.

        Raises:
            InvalidRequest, ApiError
            AtCapacity: too many texts are being read and planned.
        """
        service = self._service
        with service.documents.in_hand():
            document = await service.documents.read(await asyncio.to_thread(body.question, file, service.config.max_chars))
            work = partial(plan_job, body, self._context, service.speech, document)
            return await asyncio.get_running_loop().run_in_executor(PLANNERS, work)

    async def create(self, body: JobBody, raw: bytes, file: File | None = None) -> tuple[Job, JobPlan | None]:
        """Accepts a job and charges for all of its text.

        Args:
            raw: the request, to which its idempotency key belongs.
            file: as for plan().

        Returns:
            the job and its plan; None for the plan of a job that its idempotency key has made before.

        Raises:
            InvalidRequest, ApiError, AtCapacity, StoreFull, ShareUsedUp, StoreUnavailable
        """
        context = self._context
        tenant, key = context.caller.id, checked_key(context.idempotency_key)
        job_id = PREFIX + (secrets.token_hex(ID_LETTERS // 2) if key is None else _digest(f"{tenant}\n{key}".encode()))
        request = await asyncio.to_thread(_digest, raw)
        known = None if key is None else await self._accepted(job_id)
        if known is not None:
            return _repeated(known, request), None
        plan = await self.plan(body, file)
        target, build = body.webhook, self._service.build(plan.script.speech["model"])
        hook = None if target is None else checked_webhook(target.url, target.secret, self._service.config.webhook_hosts)
        while known is None:
            try:
                job = await self._service.intake.accept(job_id, context.caller, request, plan, hook=hook, build=build)
            except Conflict:  # an equal request was quicker
                known = await self._accepted(job_id)
            else:
                self._service.wake()
                return job, plan
        return _repeated(known, request), None

    async def pause(self, job_id: str) -> Job:
        """Stops a job until it is resumed; finished parts stay."""
        return await self._moved(job_id, JobStatus.PAUSED, among=WAITING)

    async def resume(self, job_id: str) -> Job:
        """Goes on with a job that was paused, cancelled or has failed: only missing parts are spoken.

        Raises:
            ApiError, Conflict, StoreUnavailable
            AtCapacity, StoreFull, ShareUsedUp: as for a new job.
        """
        return await self._moved(job_id, JobStatus.QUEUED, among=RESUMABLE)

    async def cancel(self, job_id: str) -> Job:
        """Ends a job; finished parts stay until it is deleted."""
        return await self._moved(job_id, JobStatus.CANCELLED, among=UNFINISHED)

    async def speak_again(self, job_id: str, number: int, body: PartBody) -> Job:
        """Has one part spoken with another seed or text; all others stay as they are.

        Raises:
            InvalidRequest, ApiError, StoreUnavailable
            AtCapacity, StoreFull, ShareUsedUp: as for a new job.
            Conflict: the job is changed by somebody else at the same moment.
        """
        job = await self.get(job_id)
        changed = await self._service.revisions.speak_again(self._context, job, number, body)
        self._service.wake()  # it may be running, or finished, before the next look
        return changed

    async def delete(self, job_id: str) -> None:
        """Removes a job and everything that was made for it; what cannot be removed now, upkeep removes later."""
        job = await self.get(job_id)
        try:
            await ask_store(self._service.remove, job)
        except StoreUnavailable:
            current = await ask_store(self._service.records.read, job_id)
            if current is not None and current.record.status is not JobStatus.DELETED:
                raise

    async def _accepted(self, job_id: str) -> Job | None:
        """Returns a job once its acceptance has ended; None: there is none.

        Raises:
            AtCapacity: an equal request is being accepted for long.
            StoreUnavailable
        """
        stop = time.monotonic() + ACCEPTING_S
        while (job := await ask_store(self._service.records.read, job_id)) is not None:
            record = job.record
            if record.status not in HIDDEN:
                return job
            if record.status is JobStatus.DELETED or record.changed_at + CLAIM_S < self._service.records.now():
                await self._service.clear(job)  # an equal request may have begun anew
            elif time.monotonic() > stop:
                raise AtCapacity("an equal request is being accepted; send this one again", retry_after_s=1.0)
            else:
                await asyncio.sleep(LOOK_S)
        return None

    async def _moved(self, job_id: str, to: JobStatus, *, among: tuple[JobStatus, ...]) -> Job:
        job = await self.get(job_id)
        if job.record.status is to:
            return job

        def move() -> JobRecord:
            if (moved := self._service.records.move(job_id, to, among=among)) is not None:
                return moved
            if (current := self._service.records.read(job_id)) is not None and current.record.status is to:
                return current.record
            status = "removed" if current is None else current.record.status.value
            raise Conflict(f"the job is {status}; this is for jobs that are {', '.join(among)}")

        if to is JobStatus.QUEUED:
            owner, intake = self._context.caller.writer, self._service.intake
            back = partial(self._service.records.put_back, job, job.record.script)
            record = await intake.settled(intake.enter(job.id, owner, job.record.size, move, back))
        else:
            record = await ask_store(move)
        self._service.wake()
        return Job(job_id, job.version + 1, record)

    def _view(self, job: Job) -> JobView:
        job, script = self._service.revisions.script_of(job)
        files, rate = self._service.files(job.id), job.record.output.sample_rate
        lengths = files.lengths()
        audio_s = sum(lengths[key] for key in script.keys if key in lengths) / rate
        return JobView(job, script, files, Track(script, lengths, rate), lengths, audio_s)


def _repeated(known: Job, request: str) -> Job:
    if known.record.request != request:
        message = "this Idempotency-Key was sent with another body; a new request takes a new key"
        raise ApiError(message, ErrorSpec(409, "conflict_error", "idempotency_mismatch", False))
    return known


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:ID_LETTERS]
