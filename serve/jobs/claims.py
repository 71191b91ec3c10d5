"""Claims: which jobs a runner takes next.

In:    all jobs, as of now
Out:   the jobs to claim
Owns:  when it saw each foreign beat first
Never: writing; comparing clocks of two machines
"""

from collections import Counter
from collections.abc import Mapping

from serve.jobs.record import JobStatus
from serve.jobs.records import Job


class Claims:
    """Chooses jobs for one runner."""

    def __init__(self, name: str, lease_s: float) -> None:
        self._name = name
        self._lease_s = lease_s
        self._seen: dict[str, tuple[tuple[str, int], float]] = {}  # job -> its holder and beat, and when they were new

    def choose(self, jobs: Mapping[str, Job], most: int, now: float) -> list[Job]:
        """Returns the jobs to claim, so that `most` are held: the oldest ones of the keys with the fewest jobs in progress.

        Args:
            now: by this machine's own clock [s].
        """
        running = [job for job in jobs.values() if job.record.status is JobStatus.RUNNING]
        orphans = [job for job in running if self._is_orphan(job, now)]
        self._seen = {job.id: self._seen[job.id] for job in running}
        room = most - sum(job.record.holder == self._name for job in running)
        if room <= 0:
            return []
        in_progress = Counter(job.record.tenant for job in running)
        waiting = orphans + [job for job in jobs.values() if job.record.status is JobStatus.QUEUED]
        queues: dict[str, list[Job]] = {}
        for job in sorted(waiting, key=lambda job: (job.record.created_at, job.id), reverse=True):
            queues.setdefault(job.record.tenant, []).append(job)
        chosen: list[Job] = []
        while queues and len(chosen) < room:
            tenant = min(queues, key=lambda one: (in_progress[one], queues[one][-1].record.created_at))
            chosen.append(queues[tenant].pop())
            in_progress[tenant] += 1
            if not queues[tenant]:
                del queues[tenant]
        return chosen

    def _is_orphan(self, job: Job, now: float) -> bool:
        """True if a job has shown the same beat for the whole lease, and its holder is not this runner."""
        beat = (job.record.holder, job.record.beat)
        known = self._seen.get(job.id)
        if known is None or known[0] != beat:
            known = self._seen[job.id] = (beat, now)
        return job.record.holder != self._name and now - known[1] >= self._lease_s


def keys_without_a_turn(jobs: Mapping[str, Job]) -> int:
    """Returns how many keys have a job that waits, and none in progress."""
    tenants = {status: {job.record.tenant for job in jobs.values() if job.record.status is status} for status in JobStatus}
    return len(tenants[JobStatus.QUEUED] - tenants[JobStatus.RUNNING])
