"""Upkeep: removes jobs that are older than they are kept, and what a crash has left of deleted ones.

In:    the desk of one replica
Out:   fewer files and records
Never: a job that is spoken; files of a record, whether this release can read it or not
"""

import asyncio
from collections.abc import Set
from pathlib import Path

from pipeline.store.threads import ask_store
from serve.jobs.desk import JobDesk
from serve.jobs.record import JobStatus

CLAIM_S = 600.0
"""a claim of an id that is older is one that a crash has left"""


async def tidy(desk: JobDesk) -> None:
    """Removes what is too old, once. Several replicas may do so at the same time.

    Raises:
        StoreUnavailable
    """
    jobs, now = await ask_store(desk.records.refresh), desk.records.now()
    before = now - desk.config.keep_s
    for job in jobs.values():
        record = job.record
        is_old = record.changed_at < before and record.status not in (JobStatus.QUEUED, JobStatus.RUNNING)
        is_claim = record.status is JobStatus.ACCEPTING and record.changed_at < now - CLAIM_S
        if is_old or is_claim or record.status is JobStatus.DELETED:
            await desk.clear(job)
    await asyncio.to_thread(_remove_files, desk, jobs.keys() | desk.records.unreadable, before)


def _remove_files(desk: JobDesk, known: Set[str], before: float) -> None:
    for folder in desk.folders():
        if folder.name not in known and _changed_at(folder) < before:
            desk.shelf(folder.name).remove()
    for upload in desk.uploads():
        if _changed_at(upload) < before:
            upload.unlink(missing_ok=True)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
