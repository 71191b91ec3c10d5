"""Records: the jobs of all replicas, in the store.

In:    a store; changes of one record
Out:   records, with the version that the store gives them
Owns:  a copy of all records, and the time of day that dates them
Never: a change of a record that somebody else has changed since

Whoever changes a record gives a function of the newest one, which is called again if another one was quicker.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import Conflict
from pipeline.store.store import START, Store
from serve.jobs.record import JobRecord, JobStatus, read_record

LOG = logging.getLogger("ray.serve.chattts")

NAMESPACE = "jobs"

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
        self.now = clock
        """seconds since 1970"""

    def refresh(self) -> dict[str, Job]:
        """Reads what has changed, and returns all jobs by their id; one that cannot be read is left out and logged.

        Raises:
            StoreUnavailable: the copy stays as it was.
        """
        with self._lock:
            changes = self._store.changes(NAMESPACE, self._position)
            if changes.is_whole:
                self._jobs.clear()
            for entry in changes.entries:
                self._jobs.pop(entry.key, None)
                for version, value in entry.versions[-1:]:
                    try:
                        self._jobs[entry.key] = Job(entry.key, version, read_record(value))
                    except ValueError as error:
                        LOG.error("jobs: %s: %s", entry.key, error)
            self._position = changes.position
            return dict(self._jobs)

    def read(self, job_id: str) -> Job | None:
        """Returns a job as it is in the store now; None: there is none.

        Raises:
            StoreUnavailable
        """
        found = self._store.get(NAMESPACE, job_id)
        return None if found is None else Job(job_id, found[0], read_record(found[1]))

    def create(self, job_id: str, record: JobRecord) -> None:
        """Writes a new record.

        Raises:
            Conflict: there is one of this id.
            StoreUnavailable
        """
        self._store.put(NAMESPACE, job_id, record.to_json(), replaces=0, keeps=1)

    def change(self, job_id: str, change: Change) -> JobRecord | None:
        """Changes a record, and returns it as it is then; None: it is not there, or the change leaves it as it is.

        Raises:
            StoreUnavailable; what `change` raises.
        """
        while (job := self.read(job_id)) is not None:
            changed = change(job.record)
            if changed is None:
                return None
            try:
                self._store.put(NAMESPACE, job_id, changed.to_json(), replaces=job.version, keeps=1)
            except Conflict:
                continue
            return changed
        return None

    def remove(self, job_id: str) -> None:
        """Removes the record of a job whose files are removed."""
        self._store.delete(NAMESPACE, job_id)

    def move(self, job_id: str, to: JobStatus, *, among: tuple[JobStatus, ...]) -> JobRecord | None:
        """Gives a job another status, if its own is `among` these."""

        def moved(record: JobRecord) -> JobRecord | None:
            if record.status not in among:
                return None
            return record.model_copy(update={"status": to, "holder": "", "changed_at": self.now()})

        return self.change(job_id, moved)
