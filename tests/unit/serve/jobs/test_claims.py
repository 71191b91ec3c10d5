"""Who is served next: every key in its turn, and jobs whose runner is gone."""

from collections.abc import Mapping

import pytest

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


def looks(jobs: Mapping[str, Job], claims: Claims, after: float, until: float) -> list[str]:
    """What is chosen at last, of looks twice a second."""
    found, now = [], after
    while now < until:
        now = min(now + 0.5, until)
        found = chosen(jobs, 5, claims, now)
    return found


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
    assert looks(jobs, claims, 100.0, 109.9) == []
    beaten = {**jobs, "a0": Job("a0", 2, jobs["a0"].record.model_copy(update={"beat": 1}))}
    assert looks(beaten, claims, 109.9, 120.3) == []
    assert looks(beaten, claims, 120.3, 121.0) == ["a0"]


def test_time_in_which_nobody_could_write_is_not_counted():
    claims = Claims("me", 10.0)
    jobs = make_jobs(("a0", "a", JobStatus.RUNNING, "other"))
    assert looks(jobs, claims, 0.0, 2.0) == []
    assert chosen(jobs, 5, claims, now=600.0) == [], "the store was away for ten minutes"
    assert looks(jobs, claims, 600.0, 604.0) == []
    assert looks(jobs, claims, 604.0, 607.0) == ["a0"]


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING])
def test_a_job_of_another_build_is_left_to_it_while_it_speaks(status: JobStatus):
    def job_of(name: str, status: JobStatus, beat: int) -> Job:
        record = make_jobs((name, "a", status, "other" if status is JobStatus.RUNNING else ""))[name].record
        return Job(name, 1, record.model_copy(update={"build": "theirs", "beat": beat}))

    claims = Claims("me", 10.0, build=lambda model: "mine")
    for second in range(100):
        jobs = {"spoken": job_of("spoken", JobStatus.RUNNING, second // 5), "left": job_of("left", status, 0)}
        assert chosen(jobs, 5, claims, now=float(second)) == []
    gone = {"left": jobs["left"]}
    assert looks(gone, claims, 99.0, 101.0) == ["left"]


def test_a_job_whose_files_are_elsewhere_is_left_to_who_has_them():
    jobs = make_jobs(("far", "a", JobStatus.QUEUED, ""), ("near", "a", JobStatus.QUEUED, ""))
    claims = Claims("me", 10.0, has_files=lambda job: job.id == "near")
    assert looks(jobs, claims, 0.0, 500.0) == ["near"]
    assert looks({"far": jobs["far"]}, claims, 500.0, 601.0) == ["far"], "nobody has them"


def test_a_job_that_only_waits_behind_others_elsewhere_is_not_lost():
    claims, far = Claims("me", 10.0, has_files=lambda job: False), make_jobs(("far", "a", JobStatus.QUEUED, ""))["far"]
    for second in range(0, 2000, 2):
        record = make_jobs(("spoken", "a", JobStatus.RUNNING, "other"))["spoken"].record.model_copy(update={"beat": second})
        assert chosen({"spoken": Job("spoken", 1, record), "far": far}, 5, claims, now=float(second)) == []
    assert looks({"far": far}, claims, 1998.0, 2000.0) == ["far"], "nobody is left who could have them"
