"""Finishing: a job whose parts are all there becomes one file.

In:    a held job without a missing part
Out:   its file, and its record as succeeded
Never: bytes that depend on anything but the samples and the format; a file of a job that has got another script or holder
"""

import asyncio

from pipeline.books.assemble import RAW_CONTAINERS, assemble
from pipeline.books.script import KEY_LETTERS, content_hash
from pipeline.books.track import Track
from pipeline.errors import NoSpeakableText
from pipeline.store.threads import ask_store
from serve.jobs.active_job import ActiveJob
from serve.jobs.record import JobRecord, JobStatus
from serve.jobs.records import JobRecords


async def finish(job: ActiveJob, records: JobRecords, holder: str) -> bool:
    """Assembles the file and changes the record, if this runner still holds the job. A cancellation waits for its thread.

    Returns:
        False if parts of it are lost and are to be spoken again.

    Raises:
        NoSpeakableText: none of its parts has a sound.
        SynthesisError, OSError: it cannot be assembled.
        StoreUnavailable: the file is there, and the record is not changed.
    """
    running = asyncio.create_task(_finished(job, records, holder))
    try:
        lengths = await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise
    job.look_again(lengths)
    return not job.missing


async def _finished(job: ActiveJob, records: JobRecords, holder: str) -> dict[str, int]:
    """Finishes a job, and returns the lengths of the parts that are there."""

    def is_held(record: JobRecord) -> bool:
        mine = record.status is JobStatus.RUNNING and record.holder == holder
        return mine and record.script == job.record.script

    def succeeded(record: JobRecord) -> JobRecord | None:
        if not is_held(record):
            return None
        update = {"status": JobStatus.SUCCEEDED, "holder": "", "done": record.parts, "result": name, "size": size}
        return record.model_copy(update={**update, "changed_at": records.now(), "rate": None, "waiting_for": ""})

    lengths = await asyncio.to_thread(job.files.lengths)
    current = await ask_store(records.read, job.id)
    if current is not None and is_held(current.record) and lengths.keys() >= set(job.script.keys):
        if not any(lengths[key] for key in job.script.keys):
            raise NoSpeakableText("the checkpoint speaks none of the words in this text", param="input")
        name = await asyncio.to_thread(_assembled, job)
        size = await asyncio.to_thread(job.files.size)
        await ask_store(records.change, job.id, succeeded)
    return lengths


def _assembled(job: ActiveJob) -> str:
    """Returns the name of the file; empty for wav and pcm, whose bytes are those of the parts."""
    files, output = job.files, job.record.output
    is_raw = output.container in RAW_CONTAINERS
    spoken = job.record.script[:KEY_LETTERS]
    name = "" if is_raw else f"{content_hash([spoken, output.model_dump()])}.{output.container}"
    files.keep_only(frozenset(job.script.keys), name)
    if not is_raw and not files.result_file(name).exists():
        track = Track(job.script, files.lengths(), output.sample_rate)
        assemble(files, job.script, track, output.audio, files.result_file(name))
    return name
