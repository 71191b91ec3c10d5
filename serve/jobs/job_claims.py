"""Job claims: which jobs a runner takes next.

In:    all jobs, as of now
Out:   the jobs to claim
Owns:  how long it has seen each job as it is
Never: writing; comparing clocks of two machines; counting time in which nobody could write

A job is left to the replicas of the build that accepted or spoke it, for as long as one of them is seen to speak: two services
on one store do not mix their voices in one job. After a lease without a sign of them it is anybody's. One whose files are not
here is left to replicas that have them; when nobody has taken it for LOST_S, they are lost;
while others speak, who may have them and much to do before, for LOST_BESIDE_OTHERS_S.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from serve.jobs.record import JobStatus
from serve.jobs.records import Job

LOST_S = 600.0
LOST_BESIDE_OTHERS_S = 86_400.0
LEAST_SHARED = 4  # parts of a job that two runners speak
STEPS = 4  # a look counts for at most this part of the lease
Sign = tuple[str, int]
"""the holder of a job and its beat"""


class Claims:
    """Chooses jobs for one runner."""

    def __init__(
        self,
        name: str,
        lease_s: float,
        build: Callable[[str], str] = lambda model: "",
        has_files: Callable[[Job], bool] = lambda job: True,
    ) -> None:
        """
        Args:
            build: as for JobService.
            has_files: whether what a job speaks is on this machine.
        """
        self._name = name
        self._lease_s = lease_s
        self._build = build
        self._has_files = has_files
        self._looked_at = math.inf
        self._now = 0.0  # counts looks that succeeded, not an outage between two of them
        self._signs: dict[str, tuple[Sign, float]] = {}  # job -> its last sign, and when it was new
        self._elsewhere: dict[str, float] = {}  # job without its files here -> when they are looked for again

    def choose(self, jobs: Mapping[str, Job], most: int, now: float) -> list[Job]:
        """Returns the jobs to claim, so that `most` are held: the oldest ones of the keys with the fewest jobs in progress.

        Args:
            now: by this machine's own clock [s].
        """
        self._now += min(max(0.0, now - self._looked_at), self._lease_s / STEPS)
        self._looked_at = now
        running = [job for job in jobs.values() if job.record.status is JobStatus.RUNNING]
        queued = [job for job in jobs.values() if job.record.status is JobStatus.QUEUED]
        self._signs = {job.id: self._last_sign(job) for job in (*running, *queued)}
        self._elsewhere = {job_id: again for job_id, again in self._elsewhere.items() if job_id in self._signs}
        orphans = [job for job in running if job.record.holder != self._name and self._is_still(job)]
        room = most - sum(job.record.holder == self._name for job in running)
        if room <= 0:
            return []
        in_progress = Counter(job.record.tenant for job in running)
        alive = {job.record.build for job in running if not self._is_still(job)}
        are_others = any(job.record.holder != self._name and not self._is_still(job) for job in running)
        lost_s = LOST_BESIDE_OTHERS_S if are_others else LOST_S
        waiting = [job for job in (*orphans, *queued) if self._may_take(job, alive)]
        queues: dict[str, list[Job]] = {}
        for job in sorted(waiting, key=lambda job: (job.record.created_at, job.id), reverse=True):
            queues.setdefault(job.record.tenant, []).append(job)
        chosen: list[Job] = []
        while queues and len(chosen) < room:
            tenant = min(queues, key=lambda candidate: (in_progress[candidate], queues[candidate][-1].record.created_at))
            job = queues[tenant].pop()
            if self._is_here(job) or self._is_still(job, lost_s):
                chosen.append(job)
                in_progress[tenant] += 1
            if not queues[tenant]:
                del queues[tenant]
        return chosen

    def to_assist(self, jobs: Mapping[str, Job]) -> list[Job]:
        """Returns the jobs that other runners hold and speak, of this build, those that miss most parts first.

        Call it after `choose`, with the same jobs.
        """
        others = [job for job in jobs.values() if job.record.status is JobStatus.RUNNING and job.record.holder != self._name]
        alive = [job for job in others if not self._is_still(job) and job.record.build == self._build(job.record.model)]
        long = [job for job in alive if job.record.parts - job.record.done >= LEAST_SHARED and self._is_here(job)]
        return sorted(long, key=lambda job: job.record.done - job.record.parts)

    def _last_sign(self, job: Job) -> tuple[Sign, float]:
        sign, known = (job.record.holder, job.record.beat), self._signs.get(job.id)
        return (sign, self._now) if known is None or known[0] != sign else known

    def _is_still(self, job: Job, time_s: float | None = None) -> bool:
        """True if a job has been as it is for a time; None: for the lease."""
        return self._now - self._signs[job.id][1] >= (self._lease_s if time_s is None else time_s)

    def _is_here(self, job: Job) -> bool:
        """True if the files of a job are here; looks once a lease."""
        if self._elsewhere.get(job.id, 0.0) > self._now:
            return False
        if self._has_files(job):
            return True
        self._elsewhere[job.id] = self._now + self._lease_s
        return False

    def _may_take(self, job: Job, alive: Collection[str]) -> bool:
        """True if a job is of this build, or of one of which there is no sign any more."""
        record = job.record
        return record.build in ("", self._build(record.model)) or (record.build not in alive and self._is_still(job))


def keys_without_a_turn(jobs: Mapping[str, Job]) -> int:
    """Returns how many keys have a job that waits, and none in progress."""
    tenants = {status: {job.record.tenant for job in jobs.values() if job.record.status is status} for status in JobStatus}
    return len(tenants[JobStatus.QUEUED] - tenants[JobStatus.RUNNING])
