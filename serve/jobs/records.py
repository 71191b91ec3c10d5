"""Records: the jobs of all replicas, in the store.

In:    a store; changes of one record
Out:   records, with the version that the store gives them
Owns:  a copy of all records, and the time of day that dates them
Never: a change of a record that somebody else has changed since; a record of another release changed or taken for none

Whoever changes a record gives a function of the newest one, which is called again if another one was quicker. A write whose
answer is lost is looked up, and sent once more if it has not happened: versions make sure that it happens once.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import Conflict, StoreFull, StoreUnavailable
from pipeline.store.mirror import WAIT_S
from pipeline.store.store import START, Store
from serve.jobs.record import UNFINISHED, JobRecord, JobStatus, read_record

LOG = logging.getLogger("ray.serve.chattts")

NAMESPACE = "jobs"

UNREADABLE = "this job is of another release of this service, and stays as it is until a replica of that release reads it"

Change = Callable[[JobRecord], JobRecord | None]
"""the next record; None: it stays as it is"""


@dataclass(frozen=True, slots=True)
class Job:
    """A record under its id."""

    id: str
    version: int
    record: JobRecord


class JobRecords:
    """Blocking; safe to share between threads."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._position = START
        self._jobs: dict[str, Job] = {}
        self.unreadable: frozenset[str] = frozenset()
        """ids of records that this release cannot read"""
        self.now = clock
        """seconds since 1970"""

    def refresh(self) -> dict[str, Job]:
        """Reads what has changed, and returns all jobs by their id; one that cannot be read is left out and logged.

        Raises:
            StoreUnavailable: the copy stays as it was. Also while another thread has been reading for WAIT_S.
        """
        if not self._lock.acquire(timeout=WAIT_S):
            raise StoreUnavailable("the jobs are still being read; try again", place=self._store.place)
        try:
            changes = self._store.changes(NAMESPACE, self._position)
            unreadable = set[str]() if changes.is_whole else set(self.unreadable)
            if changes.is_whole:
                self._jobs.clear()
            for entry in changes.entries:
                self._jobs.pop(entry.key, None)
                unreadable.discard(entry.key)
                for version, value in entry.versions[-1:]:
                    try:
                        self._jobs[entry.key] = Job(entry.key, version, read_record(value))
                    except ValueError as error:
                        unreadable.add(entry.key)
                        LOG.error("jobs: %s: %s", entry.key, error)
            self.unreadable = frozenset(unreadable)
            self._position = changes.position
            return dict(self._jobs)
        finally:
            self._lock.release()

    def read(self, job_id: str) -> Job | None:
        """Returns a job as it is in the store now; None: there is none.

        Raises:
            StoreUnavailable: that too if the record is of another release.
        """
        entry = self._store.get(NAMESPACE, job_id)
        try:
            return None if entry is None else Job(job_id, entry[0], read_record(entry[1]))
        except ValueError:
            raise StoreUnavailable(UNREADABLE) from None

    def create(self, job_id: str, record: JobRecord) -> None:
        """Writes a new record, which equals no other: its holder is new.

        Raises:
            Conflict: there is one of this id.
            StoreUnavailable
        """

        def first(known: JobRecord | None) -> JobRecord:
            if known is not None:
                raise Conflict("there is a job of this id")
            return record

        self._write(job_id, first)

    def change(self, job_id: str, change: Change) -> JobRecord | None:
        """Changes a record, and returns it as it is then; None: it is not there, or the change leaves it as it is.

        Raises:
            StoreUnavailable; what `change` raises.
        """
        return self._write(job_id, lambda known: None if known is None else change(known))

    def _write(self, job_id: str, change: Callable[[JobRecord | None], JobRecord | None]) -> JobRecord | None:
        lost: StoreUnavailable | None = None
        attempt: tuple[int, JobRecord] | None = None
        while True:
            job = self._read_after(lost, job_id)
            # The first version of an id that was used before is not 1.
            if job is not None and attempt is not None and job.record == attempt[1] and attempt[0] in (0, job.version - 1):
                return job.record
            changed, version = change(None if job is None else job.record), 0 if job is None else job.version
            if changed is None:
                return None
            try:
                self._store.put(NAMESPACE, job_id, changed.to_json(), replaces=version, keeps=1)
            except Conflict:
                continue
            except StoreUnavailable as error:
                if isinstance(error, StoreFull) or lost is not None:
                    raise
                lost, attempt = error, (version, changed)
                continue
            return changed

    def remove(self, job_id: str) -> None:
        """Removes the record of a job whose files are removed."""
        self._store.delete(NAMESPACE, job_id)

    def _read_after(self, lost: StoreUnavailable | None, job_id: str) -> Job | None:
        """Returns a job; if that is not possible after a write without an answer, raises what happened to the write."""
        try:
            return self.read(job_id)
        except StoreUnavailable as error:
            raise lost or error from None

    def put_back(self, job: Job, script: str) -> None:
        """Gives a job that is to be spoken its former record back, unless its script is another one than this."""
        status = JobStatus.QUEUED if job.record.status is JobStatus.RUNNING else job.record.status

        def former(record: JobRecord) -> JobRecord | None:
            if record.status not in UNFINISHED or record.script != script:
                return None
            return job.record.model_copy(update={"status": status, "holder": "", "beat": record.beat})

        self.change(job.id, former)

    def move(self, job_id: str, to: JobStatus, *, among: tuple[JobStatus, ...]) -> JobRecord | None:
        """Gives a job another status, if its own is `among` these."""

        def moved(record: JobRecord) -> JobRecord | None:
            if record.status not in among:
                return None
            return record.model_copy(update={"status": to, "holder": "", "waiting_for": "", "changed_at": self.now()})

        return self.change(job_id, moved)
