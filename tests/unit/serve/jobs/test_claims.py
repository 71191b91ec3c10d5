"""Who is served next: every key in its turn, and jobs whose runner is gone."""

from collections.abc import Mapping

from serve.jobs.claims import Claims, keys_without_a_turn
from serve.jobs.record import JobRecord, JobStatus, Output
from serve.jobs.records import Job


def make_jobs(*jobs: tuple[str, str, JobStatus, str]) -> Mapping[str, Job]:
    """Of (id, tenant, status, holder), the oldest first."""
    found = {}
    for number, (job_id, tenant, status, holder) in enumerate(jobs):
        output = Output(container="wav", sample_rate=24_000)
        fields = {"created_at": float(number), "changed_at": 0.0, "script": "", "output": output, "model": "", "voice": ""}
        sizes = {"parts": 1, "characters": 1, "predicted_s": 1.0, "size": 1, "seed": 0}
        found[job_id] = Job(job_id, 1, JobRecord(tenant=tenant, status=status, holder=holder, **fields, **sizes))
    return found


def chosen(jobs: Mapping[str, Job], most: int, claims: Claims | None = None, now: float = 0.0) -> list[str]:
    return [job.id for job in (claims or Claims("me", 10.0)).choose(jobs, most, now)]


def test_keys_take_turns_whoever_came_first():
    queued = JobStatus.QUEUED
    jobs = make_jobs(*((f"a{n}", "a", queued, "") for n in range(5)), ("b0", "b", queued, ""), ("c0", "c", queued, ""))
    assert chosen(jobs, 4) == ["a0", "b0", "c0", "a1"]
    assert chosen(jobs, 100) == ["a0", "b0", "c0", "a1", "a2", "a3", "a4"]


def test_a_key_with_a_job_in_progress_waits_for_one_without():
    jobs = make_jobs(("a0", "a", JobStatus.RUNNING, "me"), ("a1", "a", JobStatus.QUEUED, ""), ("b0", "b", JobStatus.QUEUED, ""))
    assert chosen(jobs, 2) == ["b0"]
    assert chosen(jobs, 1) == []
    assert keys_without_a_turn(jobs) == 1


def test_a_job_is_taken_over_when_its_beat_stands_still_for_the_lease():
    claims = Claims("me", 10.0)
    jobs = make_jobs(("a0", "a", JobStatus.RUNNING, "other"), ("a1", "a", JobStatus.RUNNING, "me"))
    assert chosen(jobs, 5, claims, now=100.0) == []
    assert chosen(jobs, 5, claims, now=109.9) == []
    beaten = {**jobs, "a0": Job("a0", 2, jobs["a0"].record.model_copy(update={"beat": 1}))}
    assert chosen(beaten, 5, claims, now=110.5) == []
    assert chosen(beaten, 5, claims, now=120.4) == []
    assert chosen(beaten, 5, claims, now=120.5) == ["a0"]
