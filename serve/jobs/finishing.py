"""Finishing: a job whose parts are all there becomes one file.

In:    a held job without a missing part
Out:   its file, and its record as succeeded
Owns:  nothing
Never: bytes that depend on anything but the samples and the format
"""

import asyncio

from pipeline.books.assemble import RAW_CONTAINERS, assemble
from pipeline.books.script import content_hash
from pipeline.books.track import Track
from serve.jobs.held import HeldJob
from serve.jobs.record import JobRecord, JobStatus
from serve.jobs.records import JobRecords


async def finish(held: HeldJob, records: JobRecords, holder: str) -> None:
    """Assembles the file and changes the record, if this runner still holds the job.

    Raises:
        SynthesisError, OSError: it cannot be assembled.
        StoreUnavailable: the file is there, and the record is not changed.
    """
    name = await asyncio.to_thread(_assembled, held)
    size = await asyncio.to_thread(held.shelf.size)

    def succeeded(record: JobRecord) -> JobRecord | None:
        if record.status is not JobStatus.RUNNING or record.holder != holder or record.script != held.record.script:
            return None
        update = {"status": JobStatus.SUCCEEDED, "holder": "", "done": record.parts, "result": name, "size": size}
        return record.model_copy(update={**update, "changed_at": records.now(), "rate": None})

    await asyncio.to_thread(records.change, held.id, succeeded)


def _assembled(held: HeldJob) -> str:
    """Returns the name of the file; empty for wav and pcm, whose bytes are those of the parts."""
    shelf, output, script = held.shelf, held.record.output, held.record.script
    is_raw = output.container in RAW_CONTAINERS
    name = "" if is_raw else f"{content_hash([script, output.model_dump()])}.{output.container}"
    shelf.keep_only(frozenset(held.script.keys), script, name)
    if not is_raw and not shelf.result_file(name).exists():
        track = Track(held.script, shelf.lengths(), output.sample_rate)
        assemble(shelf, held.script, track, output.audio, shelf.result_file(name))
    return name
