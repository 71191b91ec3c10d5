"""Revisions: one part of a job is spoken with another seed or text, and all others stay as they are.

In:    a job, the number of a part, what changes
Out:   the job with its next script
Never: a charge for a part that is not spoken again; a script removed that a record names
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pipeline.books.job_files import SAMPLE_BYTES, JobFiles
from pipeline.books.script import Script, content_hash
from pipeline.errors import Conflict, StoreUnavailable
from pipeline.store.threads import ask_store
from serve.access.caller import Caller
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.jobs.body import PartBody
from serve.jobs.disk import writing
from serve.jobs.intake import Intake
from serve.jobs.planning import settled_part
from serve.jobs.record import HIDDEN, UNFINISHED, JobRecord, JobStatus
from serve.jobs.records import UNREADABLE, Job, JobRecords
from serve.speech.job import RequestContext
from serve.speech.speech_services import SpeechServices


@dataclass(frozen=True, slots=True, eq=False)
class Revision:
    """What becomes of a job."""

    job: Job
    """as it was"""
    script: Script
    characters: int
    """that are spoken again"""
    size: int
    """of the job's files, as it is expected [bytes]"""


class Revisions:
    """The jobs of one replica, part by part."""

    def __init__(self, intake: Intake, records: JobRecords, files: Callable[[str], JobFiles], speech: SpeechServices) -> None:
        """
        Args:
            files: id of a job -> its files.
        """
        self._intake = intake
        self._records = records
        self._files = files
        self._speech = speech

    def script_of(self, job: Job) -> tuple[Job, Script]:
        """Returns what a job speaks, and the job, which may have got another script meanwhile.

        Raises:
            ApiError: 404
            StoreUnavailable
        """
        files = self._files(job.id)
        try:
            return job, files.script(job.record.script)
        except FileNotFoundError:
            current = self._records.read(job.id)
            if current is None or current.record.status in HIDDEN:
                raise not_found() from None
            if current.record.script != job.record.script:
                return self.script_of(current)
            message = "the files of this job are not on this machine (jobs.folder)"
            raise StoreUnavailable(message, place=str(files.folder)) from None
        except ValueError:
            raise StoreUnavailable(UNREADABLE, place=str(files.folder)) from None

    async def speak_again(self, context: RequestContext, job: Job, number: int, body: PartBody) -> Job:
        """Has a part spoken again; raises as JobsOf.speak_again says."""
        revision = await asyncio.to_thread(self._revised, context, job, number, body)
        return await self._intake.settled(self._enter(context.caller, revision))

    def _revised(self, context: RequestContext, job: Job, number: int, body: PartBody) -> Revision:
        job, before = self.script_of(job)
        if number >= len(before.parts):
            raise bad_request("out_of_range", f"the job has parts 0 to {len(before.parts) - 1}", status=404)
        script = before.with_part(number, body.changed(before.parts[number]))
        script = script.with_part(number, settled_part(script, number, context, self._speech))
        more_s = max(0.0, script.predicted_s[number] - before.predicted_s[number])
        more = (
            max(0, len(script.to_json()) - len(before.to_json())) + round(more_s * job.record.output.sample_rate) * SAMPLE_BYTES
        )
        is_new = content_hash(script.body_of(number)) not in before.keys
        return Revision(job, script, script.characters_of(number) if is_new else 0, job.record.size + more)

    async def _enter(self, caller: Caller, revision: Revision) -> Job:
        job = revision.job
        files = self._files(job.id)

        def keep() -> str:
            try:
                with writing("the text of the part", files.folder):
                    return files.keep_script(revision.script)
            except StoreUnavailable:
                if not files.folder.exists():
                    raise not_found() from None  # deleted at this moment
                raise

        async with caller.charged(revision.characters) as charge:
            name = await asyncio.to_thread(keep)
            try:
                record = await self._intake.enter(
                    job.id,
                    caller.writer,
                    revision.size,
                    lambda: self._replace(revision, name),
                    lambda: self._records.put_back(job, name),
                )
            except Exception:
                await ask_store(self._discard, job.id, name)
                raise
            charge.keep()
        with suppress(OSError):
            await asyncio.to_thread(files.remove_script, job.record.script)
        return Job(job.id, job.version + 1, record)

    def _discard(self, job_id: str, script: str) -> None:
        """Removes a script, if it is certain that the record does not name it; else it goes with the job."""
        with suppress(StoreUnavailable):
            current = self._records.read(job_id)
            if current is None or current.record.script != script:
                self._files(job_id).remove_script(script)

    def _replace(self, revision: Revision, script: str) -> JobRecord:
        def replaced(record: JobRecord) -> JobRecord | None:
            if record.script == script or record.status in HIDDEN:
                return None
            if record.script != revision.job.record.script:
                raise Conflict("another part of this job was changed at the same moment: send it again")
            status = record.status if record.status in UNFINISHED else JobStatus.QUEUED
            spoken = {"script": script, "predicted_s": sum(revision.script.predicted_s), "size": revision.size}
            return record.model_copy(
                update={**spoken, "status": status, "result": "", "changed_at": self._records.now(), "error": None}
            )

        changed = self._records.change(revision.job.id, replaced)
        if changed is None:
            current = self._records.read(revision.job.id)
            if current is None or current.record.script != script:
                raise not_found()
            changed = current.record
        return changed


def not_found() -> ApiError:
    """Returns the refusal of a job that this caller does not have."""
    message = "no such job; GET /v1/audio/jobs lists yours"
    return ApiError(message, ErrorSpec(404, "not_found_error", "job_not_found", False), param="job_id")
