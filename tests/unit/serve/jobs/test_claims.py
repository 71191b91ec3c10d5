"""Which job is next: every key in its turn, and jobs whose runner is gone; and what is too old, or of another release."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import StoreUnavailable
from pipeline.store.open import open_store
from pipeline.types import LoadReport
from serve.access.caller import Caller
from serve.config.jobs import JobsConfig
from serve.jobs.body import JobBody
from serve.jobs.job_claims import Claims, keys_without_a_turn
from serve.jobs.part_room import AUTO, FILLED, FIRST, PLACES, RESERVE, PartRoom, rows_to_fill
from serve.jobs.record import JobStatus
from serve.jobs.records import NAMESPACE, Job
from serve.jobs.runner import JobRunner, tidy
from serve.speech.job import RequestContext
from tests.support.fakes import Speaker, make_jobs, make_speech_services
from tests.support.jobs import job_record
from tests.support.waiting import until


def queue_of(*jobs: tuple[str, str, JobStatus, str]) -> Mapping[str, Job]:
    """Of (id, tenant, status, holder), the oldest first."""
    return {
        job_id: Job(job_id, 1, job_record(tenant=tenant, status=status, holder=holder, created_at=float(number)))
        for number, (job_id, tenant, status, holder) in enumerate(jobs)
    }


def chosen(jobs: Mapping[str, Job], most: int, claims: Claims | None = None, now: float = 0.0) -> list[str]:
    return [job.id for job in (claims or Claims("me", 10.0)).choose(jobs, most, now)]


def looks(jobs: Mapping[str, Job], claims: Claims, after: float, until: float) -> list[str]:
    """What is chosen at last, of looks twice a second."""
    jobs_chosen, now = [], after
    while now < until:
        now = min(now + 0.5, until)
        jobs_chosen = chosen(jobs, 5, claims, now)
    return jobs_chosen


def test_keys_take_turns_whoever_came_first():
    queued = JobStatus.QUEUED
    jobs = queue_of(*((f"a{n}", "a", queued, "") for n in range(5)), ("b0", "b", queued, ""), ("c0", "c", queued, ""))
    assert chosen(jobs, 4) == ["a0", "b0", "c0", "a1"]
    assert chosen(jobs, 100) == ["a0", "b0", "c0", "a1", "a2", "a3", "a4"]


def test_a_key_with_a_job_in_progress_waits_for_one_without():
    jobs = queue_of(("a0", "a", JobStatus.RUNNING, "me"), ("a1", "a", JobStatus.QUEUED, ""), ("b0", "b", JobStatus.QUEUED, ""))
    assert chosen(jobs, 2) == ["b0"]
    assert chosen(jobs, 1) == []
    assert keys_without_a_turn(jobs) == 1


def test_a_job_is_taken_over_when_its_beat_stands_still_for_the_lease():
    claims = Claims("me", 10.0)
    jobs = queue_of(("a0", "a", JobStatus.RUNNING, "other"), ("a1", "a", JobStatus.RUNNING, "me"))
    assert chosen(jobs, 5, claims, now=100.0) == []
    assert looks(jobs, claims, 100.0, 109.9) == []
    beaten = {**jobs, "a0": Job("a0", 2, jobs["a0"].record.model_copy(update={"beat": 1}))}
    assert looks(beaten, claims, 109.9, 120.3) == []
    assert looks(beaten, claims, 120.3, 121.0) == ["a0"]


def test_time_in_which_nobody_could_write_is_not_counted():
    claims = Claims("me", 10.0)
    jobs = queue_of(("a0", "a", JobStatus.RUNNING, "other"))
    assert looks(jobs, claims, 0.0, 2.0) == []
    assert chosen(jobs, 5, claims, now=600.0) == [], "the store was away for ten minutes"
    assert looks(jobs, claims, 600.0, 604.0) == []
    assert looks(jobs, claims, 604.0, 607.0) == ["a0"]


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING])
def test_a_job_of_another_build_is_left_to_it_while_it_speaks(status: JobStatus):
    def job_of(name: str, status: JobStatus, beat: int) -> Job:
        record = queue_of((name, "a", status, "other" if status is JobStatus.RUNNING else ""))[name].record
        return Job(name, 1, record.model_copy(update={"build": "theirs", "beat": beat}))

    claims = Claims("me", 10.0, build=lambda model: "mine")
    for second in range(100):
        jobs = {"spoken": job_of("spoken", JobStatus.RUNNING, second // 5), "left": job_of("left", status, 0)}
        assert chosen(jobs, 5, claims, now=float(second)) == []
    gone = {"left": jobs["left"]}
    assert looks(gone, claims, 99.0, 101.0) == ["left"]


def test_a_job_whose_files_are_elsewhere_is_left_to_who_has_them():
    jobs = queue_of(("far", "a", JobStatus.QUEUED, ""), ("near", "a", JobStatus.QUEUED, ""))
    claims = Claims("me", 10.0, has_files=lambda job: job.id == "near")
    assert looks(jobs, claims, 0.0, 500.0) == ["near"]
    assert looks({"far": jobs["far"]}, claims, 500.0, 601.0) == ["far"], "nobody has them"


def test_a_job_that_only_waits_behind_others_elsewhere_is_not_lost():
    claims, far = Claims("me", 10.0, has_files=lambda job: False), queue_of(("far", "a", JobStatus.QUEUED, ""))["far"]
    for second in range(0, 2000, 2):
        record = queue_of(("spoken", "a", JobStatus.RUNNING, "other"))["spoken"].record.model_copy(update={"beat": second})
        assert chosen({"spoken": Job("spoken", 1, record), "far": far}, 5, claims, now=float(second)) == []
    assert looks({"far": far}, claims, 1998.0, 2000.0) == ["far"], "nobody is left who could have them"


# Upkeep: what is too old goes, what somebody may still need stays.


PLAIN = job_record().model_dump(mode="json")
BATCH = {**PLAIN, "batch": {"input_file_id": "file-1", "endpoint": "/v1/audio/speech", "completion_window": "24h"}}


def test_batches_and_files_of_an_earlier_build_are_nobodys_and_go_when_they_are_old(tmp_path: Path):
    service = make_jobs(make_speech_services(Speaker()), folder=tmp_path)
    store = open_store(str(tmp_path / "store.sqlite"))
    old, young = "job-" + 24 * "0", "job-" + 24 * "1"
    now = service.records.now()
    for job_id, changed_at in ((old, 1.0), (young, now)):
        store.put(NAMESPACE, job_id, json.dumps({**BATCH, "changed_at": changed_at}).encode(), replaces=0, keeps=1)
        service.files(job_id).folder.mkdir(parents=True)
    for name, changed_at in (("file-1.jsonl", 1.0), (".file-2.jsonl.tmp", 1.0), ("file-3.jsonl", now)):
        (tmp_path / name).write_bytes(b"{}")
        os.utime(tmp_path / name, (changed_at, changed_at))
    assert asyncio.run(service.of(ANNA).listed()) == []
    assert asyncio.run(service.load()).jobs == 0
    asyncio.run(tidy(service))
    assert sorted(path.name for path in tmp_path.iterdir() if "store" not in path.name) == ["file-3.jsonl", young]
    assert [entry.key for entry in store.changes(NAMESPACE).entries if entry.versions] == [young]


ANNA = RequestContext("id", Caller("anna"))
OF_ANOTHER_RELEASE = {
    "a field": {**PLAIN, "field_of_the_next_release": 1},
    "a status": {**PLAIN, "status": "dreaming"},
    "nothing of ours": [1, "batch"],
}


@pytest.mark.parametrize("record", OF_ANOTHER_RELEASE.values(), ids=OF_ANOTHER_RELEASE)
def test_a_record_of_another_release_stays_with_its_files_and_fails_no_list(tmp_path: Path, record: Any):
    service = make_jobs(make_speech_services(Speaker()), folder=tmp_path)
    store = open_store(str(tmp_path / "store.sqlite"))
    job_id, other_id = "job-" + 24 * "0", "job-" + 24 * "1"
    store.put(NAMESPACE, job_id, json.dumps(record).encode(), replaces=0, keeps=1)
    store.put(NAMESPACE, other_id, json.dumps(PLAIN).encode(), replaces=0, keeps=1)
    service.files(job_id).make()
    os.utime(service.files(job_id).folder, (1, 1))
    assert [job.id for job in asyncio.run(service.of(ANNA).listed())] == [other_id]
    asyncio.run(tidy(service))
    assert service.files(job_id).folder.exists()
    assert store.get(NAMESPACE, job_id) is not None
    own = service.of(ANNA)
    for ask in (own.get, own.view, own.delete):
        with pytest.raises(StoreUnavailable, match="another release"):
            asyncio.run(ask(job_id))


@pytest.mark.parametrize("script", [b"[]", b"{}", b'{"parts": [{"text": "a", "mood": 1}], "chapters": []}', b"no JSON"])
async def test_a_script_of_another_release_stops_no_runner(tmp_path: Path, script: bytes):
    services = make_speech_services(Speaker(chunks=1))
    service = make_jobs(services, JobsConfig.varied({"lease_s": 0.5}), tmp_path)
    jobs = []
    for number in range(2):
        body = JobBody(input=f"Number {number}.", seed=1, voice="default", response_format="wav")
        jobs.append((await service.of(ANNA).create(body, b""))[0])
    file = service.files(jobs[0].id).folder / f"script-{jobs[0].record.script}.json"
    file.write_bytes(script)
    running = asyncio.create_task(JobRunner(service, services, look_s=0.02).run())
    await until(lambda: service.records.refresh()[jobs[1].id].record.status is JobStatus.SUCCEEDED)
    await until(lambda: service.queued_s > 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert service.records.refresh()[jobs[0].id].record.status is JobStatus.QUEUED, "for a replica that can read it"
    with pytest.raises(StoreUnavailable, match="another release"):
        await service.of(ANNA).view(jobs[0].id)


# How many parts are spoken at once: what the engines leave free, less a reserve; refusals are heeded once.


def report(usable: int, running: int, waiting: int = 0, row_s: float = 0.0) -> LoadReport:
    return LoadReport(usable, running, waiting, (0.0, 0.0, 0.0), 0.0, 100.0, 0.005, row_s, 0, 0.0)


def grown(room: PartRoom) -> PartRoom:
    for _ in range(1_000):
        room.end(room.begin())
    return room


def test_a_number_is_that_number_whatever_happens():
    room = PartRoom(3, lambda: [report(16, 0)], 4)
    room.end(room.begin(), is_refused=True)
    assert grown(room).most == 3
    assert not PartRoom(0, list, 64).has_place


def test_nothing_is_known_before_the_first_report():
    assert grown(PartRoom(AUTO, list, 64)).most == FIRST


@given(st.lists(st.tuples(st.integers(1, 128), st.integers(0, 128), st.integers(0, 64)), min_size=1, max_size=8))
def test_parts_and_others_leave_the_reserve_free(loads: list[tuple[int, int, int]]):
    reports = [report(usable, min(usable, running), waiting) for usable, running, waiting in loads]
    room = grown(PartRoom(AUTO, lambda: reports, 1 << 20))
    slots, others = (sum(getattr(entry, name) for entry in reports) for name in ("usable", "running"))
    others += sum(entry.waiting for entry in reports)
    assert room.most == 1 or room.most + others <= (1 - RESERVE) * slots
    assert room.most >= min((1 - RESERVE) * slots - others - 1, 1)


@given(st.lists(st.booleans(), max_size=200), st.integers(2, 300))
def test_refusals_of_one_moment_halve_it_once_and_parts_that_are_spoken_bring_it_back(refusals: list[bool], places: int):
    room = grown(PartRoom(AUTO, lambda: [report(1 << 20, 0)], places))
    ceiling = max(1, int(PLACES * places))
    assert room.most == ceiling
    windows = [room.begin() for _ in range(ceiling)]
    for window, is_refused in zip(windows, refusals, strict=False):
        room.end(window, is_refused=is_refused)
    assert room.most >= max(1, ceiling // 2)
    if not any(refusals[: len(windows)]):
        assert room.most == ceiling
    assert 1 <= grown(room).most <= ceiling


def test_each_refusal_after_a_halving_halves_again():
    room, sizes = grown(PartRoom(AUTO, lambda: [report(1 << 20, 0)], 128)), []
    for _ in range(7):
        room.end(room.begin(), is_refused=True)
        sizes.append(room.most)
    assert sizes == [32, 16, 8, 4, 2, 1, 1]
    assert grown(room).most > 16


@given(st.integers(1, 256), st.floats(0.0, 0.01))
def test_rows_that_hardly_make_an_engine_faster_are_left_empty(slots: int, row_s: float):
    engine = report(slots, 0, row_s=row_s)

    def rate(rows: float) -> float:
        return rows / (engine.fixed_s + engine.row_s * rows)

    rows = rows_to_fill(engine)
    assert 0 < rows <= (1 - RESERVE) * slots
    assert rate(rows) <= FILLED * rate(slots) * 1.000001
    assert rows > (1 - RESERVE) * slots - 1e-6 or rate(rows) >= FILLED * rate(slots) * 0.999999


@pytest.mark.parametrize("speaking", [0, 5, 12])
def test_what_the_replica_speaks_itself_is_not_counted_as_others(speaking: int):
    room = grown(PartRoom(AUTO, lambda: [report(16, speaking)], 64))
    for _ in range(speaking):
        room.begin()
    assert room.most == 12
    assert room.has_place == (speaking < 12)
