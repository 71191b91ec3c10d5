"""Intake: the one way into the queue, for new jobs and for those that are spoken again.

In:    plans, callers, changes of records
Out:   jobs that are queued, charged and kept; or a refusal that leaves nothing behind
Owns:  work whose client may have left
Never: a charge without a job; a job without its text; more jobs or bytes than the limits, whoever comes at the same moment

First the id is claimed by a record, then the characters are charged, then the text is written, then the record is queued.
Whatever fails, the charge is given back and the claim withdrawn. The claim's holder is the token of the charge: whoever removes
a claim that a crash has left takes back what was charged.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from pipeline.books.job_files import JobFiles
from pipeline.errors import AtCapacity, Conflict, ShareUsedUp, StoreFull, StoreUnavailable
from pipeline.store.ownership import Share, Writer
from pipeline.store.store import MAX_NAMESPACE_BYTES
from pipeline.store.threads import ask_store
from serve.access.caller import Caller
from serve.config.jobs import JobsConfig
from serve.jobs.disk import writing
from serve.jobs.planning import JobPlan
from serve.jobs.record import JobRecord, JobStatus, Webhook
from serve.jobs.records import Job, JobRecords

LOG = logging.getLogger("ray.serve.chattts")

T = TypeVar("T")

ANSWER_S = 10.0
"""after so long a client hears that nothing is known yet"""
ASK_AGAIN_S = 0.5
ALONE_S = 3.0
"""so long one job keeps others from being counted"""
RETRY_AFTER_S = 60.0
MOST_KEPT = MAX_NAMESPACE_BYTES // 4 >> 12
"""jobs of one key, finished ones too: a quarter of the records' bytes, at 4 KiB for each"""
UNKNOWN = "the store does not say whether this was done; look at GET /v1/audio/jobs before you send it again"


class Intake:
    """How the clients of one replica get jobs into the queue."""

    def __init__(self, config: JobsConfig, records: JobRecords, files: Callable[[str], JobFiles]) -> None:
        """
        Args:
            files: id of a job -> its files.
        """
        self._config = config
        self._records = records
        self._files = files
        self._alone = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def settled(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns what becomes of a piece of work, which is done to its end even if nobody waits for it any more.

        Raises:
            StoreUnavailable: it is not known yet.
            what `work` raises.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait((task,), timeout=ANSWER_S)
        if not done:
            raise StoreUnavailable(UNKNOWN, outcome_unknown=True)
        return task.result()

    async def accept(
        self, job_id: str, caller: Caller, request: str, plan: JobPlan, *, hook: Webhook | None, build: str
    ) -> Job:
        """Accepts what is planned, and charges for all of its text.

        Args:
            request: hash of the request; empty: it cannot be repeated.
            build: of this replica.

        Raises:
            Conflict: there is a job of this id.
            AtCapacity, StoreFull, ShareUsedUp, StoreUnavailable, ApiError
        """
        script, now = plan.script, self._records.now()
        claim = JobRecord(
            tenant=caller.id,
            status=JobStatus.ACCEPTING,
            created_at=now,
            changed_at=now,
            script="",
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
            build=build,
            holder=secrets.token_hex(8),
            webhook=hook,
        )
        return await self.settled(self._accept(job_id, caller, claim, plan))

    async def enter(self, job_id: str, owner: Writer, size: int, into: Callable[[], T], back: Callable[[], object]) -> T:
        """Changes a record so that it is to be spoken, within the limits of jobs and bytes.

        Args:
            owner: of the job.
            size: of the job's files, as it is expected [bytes].
            into: the change; it may be called again if its answer is lost.
            back: takes the change back.

        Raises:
            AtCapacity, StoreFull, ShareUsedUp: a limit is reached.
            StoreUnavailable; what `into` raises.
        """
        async with self._alone:
            await ask_store(self._check_room, job_id, owner, size)
            entering = asyncio.ensure_future(self.certain(into))
            await asyncio.wait((entering,), timeout=ALONE_S)
        entered = await entering
        try:  # once more: another replica may have been as quick
            await ask_store(self._check_room, job_id, owner, size)
        except (AtCapacity, StoreFull, ShareUsedUp):
            await self._repeated(back)
            raise
        except StoreUnavailable:
            pass
        return entered

    async def certain(self, write: Callable[[], T]) -> T:
        """Returns what a write that can be repeated returns; repeats it for as long as it may or may not have happened.

        Raises:
            StoreUnavailable: it has not happened.
        """
        is_unknown = False
        while True:
            try:
                return await ask_store(write)
            except StoreUnavailable as error:
                is_unknown |= error.outcome_unknown
                if not is_unknown or isinstance(error, StoreFull):
                    raise
                await asyncio.sleep(ASK_AGAIN_S)

    async def _repeated(self, write: Callable[[], object]) -> None:
        """Does a write that can be repeated, as soon as the store takes it."""
        while True:
            try:
                await ask_store(write)
                return
            except StoreUnavailable:
                await asyncio.sleep(ASK_AGAIN_S)

    async def _accept(self, job_id: str, caller: Caller, claim: JobRecord, plan: JobPlan) -> Job:
        try:
            await self.enter(
                job_id,
                caller.writer,
                claim.size,
                lambda: self._records.create(job_id, claim),
                lambda: self._withdraw(job_id, claim),
            )
            async with caller.charged(claim.characters, token=claim.holder) as charge:
                name = await asyncio.to_thread(self._keep_text, job_id, plan)
                record = await self.certain(lambda: self._queued(job_id, claim, name))
                charge.keep()
        except BaseException:
            await self._withdrawn(job_id, claim)
            raise
        return Job(job_id, 1, record)

    def _keep_text(self, job_id: str, plan: JobPlan) -> str:
        """Writes what is spoken and returns its name."""
        script, files = plan.script, self._files(job_id)
        with writing("the text of the job", files.folder):
            files.make()
            if plan.cover:
                script = replace(script, cover=files.keep_cover(plan.cover))
            return files.keep_script(script)

    def _queued(self, job_id: str, claim: JobRecord, script: str) -> JobRecord:
        def queued(record: JobRecord) -> JobRecord | None:
            if not _is_claimed(record, claim):
                return None
            update = {"status": JobStatus.QUEUED, "holder": "", "script": script, "changed_at": self._records.now()}
            return record.model_copy(update=update)

        changed = self._records.change(job_id, queued)
        if changed is None:
            current = self._records.read(job_id)
            if current is None or current.record.script != script:
                raise Conflict("the job was removed while it was accepted: send it again")
            changed = current.record
        return changed

    async def _withdrawn(self, job_id: str, claim: JobRecord) -> None:
        try:
            await ask_store(self._withdraw, job_id, claim)
        except (StoreUnavailable, OSError) as error:
            LOG.warning("job %s: it is not accepted; upkeep removes what is left of it: %s", job_id, error)

    def _withdraw(self, job_id: str, claim: JobRecord) -> None:
        current = self._records.read(job_id)
        if current is not None and _is_claimed(current.record, claim):
            self._files(job_id).remove()
            self._records.remove(job_id)

    def _check_room(self, job_id: str, owner: Writer, size: int) -> None:
        """
        Raises:
            AtCapacity, StoreFull: with this job there would be too many, or too many bytes.
            ShareUsedUp: of this key.
            StoreUnavailable
        """
        others = [job.record for job in self._records.refresh().values() if job.id != job_id]
        waiting = [record.tenant for record in others if not record.is_finished]
        most, budget = self._config.max_jobs_per_key, self._config.disk_mib << 20
        if len(waiting) >= self._config.max_jobs:
            raise AtCapacity(f"{self._config.max_jobs} jobs are not finished (jobs.max_jobs)", retry_after_s=RETRY_AFTER_S)
        if waiting.count(owner.id) >= most:
            message = f"{most} jobs of this key are not finished (jobs.max_jobs_per_key): wait, or cancel one"
            raise AtCapacity(message, retry_after_s=RETRY_AFTER_S)
        used = sum(record.size for record in others)
        if used + size > budget:
            free = max(0, budget - used) >> 20
            raise StoreFull(
                f"the job needs about {size >> 20} MiB, and {free} of {self._config.disk_mib} MiB (jobs.disk_mib) are "
                "free: delete jobs, or send a shorter one"
            )
        Share("jobs", MOST_KEPT, budget // 4).check(owner, ((record.tenant, record.size) for record in others), size)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        with suppress(asyncio.CancelledError):
            task.exception()  # its client may have left


def _is_claimed(record: JobRecord, claim: JobRecord) -> bool:
    return record.status is JobStatus.ACCEPTING and record.holder == claim.holder
