"""Upkeep: removes jobs that are older than they are kept, and what a crash has left of deleted ones.

In:    the desk of one replica
Out:   fewer files and records
Owns:  nothing
Never: a job that is spoken; files that may belong to a job which is being created
"""

from pathlib import Path

from serve.jobs.desk import JobDesk
from serve.jobs.record import JobStatus


def tidy(desk: JobDesk) -> None:
    """Removes what is too old, once. Several replicas may do so at the same time.

    Raises:
        StoreUnavailable
    """
    jobs, before = desk.records.refresh(), desk.records.now() - desk.config.keep_s
    for job in jobs.values():
        record = job.record
        is_old = record.changed_at < before and record.status not in (JobStatus.QUEUED, JobStatus.RUNNING)
        if is_old or record.status is JobStatus.DELETED:
            desk.remove(job.id)
    for folder in desk.folders():
        if folder.name not in jobs and _changed_at(folder) < before:
            desk.shelf(folder.name).remove()
    for upload in desk.uploads():
        if _changed_at(upload) < before:
            upload.unlink(missing_ok=True)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
