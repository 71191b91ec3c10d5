"""Upkeep: what is too old goes, what somebody may still need stays."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StoreUnavailable
from pipeline.store.open import open_store
from serve.access.caller import Caller
from serve.config.jobs import JobsConfig
from serve.jobs.body import JobBody
from serve.jobs.record import JobStatus
from serve.jobs.records import NAMESPACE
from serve.jobs.runner import JobRunner, tidy
from serve.speech.job import RequestContext
from tests.support.fakes import Speaker, make_jobs, make_speech_services
from tests.support.waiting import until

PLAIN = {
    "tenant": "anna",
    "status": "queued",
    "created_at": 1.0,
    "changed_at": 1.0,
    "script": "x",
    "output": {"container": "wav", "sample_rate": 24_000},
    "model": "m",
    "voice": "v",
    "seed": 1,
    "parts": 1,
    "characters": 1,
    "predicted_s": 1.0,
    "size": 1,
}
BATCH = {**PLAIN, "batch": {"input_file_id": "file-1", "endpoint": "/v1/audio/speech", "completion_window": "24h"}}


def test_batches_and_files_of_an_earlier_build_are_nobodys_and_go_when_they_are_old(tmp_path: Path):
    desk = make_jobs(make_speech_services(Speaker()), folder=tmp_path)
    store = open_store(str(tmp_path / "store.sqlite"))
    old, young = "job-" + 24 * "0", "job-" + 24 * "1"
    now = desk.records.now()
    for job_id, changed_at in ((old, 1.0), (young, now)):
        store.put(NAMESPACE, job_id, json.dumps({**BATCH, "changed_at": changed_at}).encode(), replaces=0, keeps=1)
        desk.shelf(job_id).folder.mkdir(parents=True)
    for name, changed_at in (("file-1.jsonl", 1.0), (".file-2.jsonl.tmp", 1.0), ("file-3.jsonl", now)):
        (tmp_path / name).write_bytes(b"{}")
        os.utime(tmp_path / name, (changed_at, changed_at))
    assert asyncio.run(desk.of(ANNA).listed()) == []
    assert asyncio.run(desk.load()).jobs == 0
    asyncio.run(tidy(desk))
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
    desk = make_jobs(make_speech_services(Speaker()), folder=tmp_path)
    store = open_store(str(tmp_path / "store.sqlite"))
    job_id, kept = "job-" + 24 * "0", "job-" + 24 * "1"
    store.put(NAMESPACE, job_id, json.dumps(record).encode(), replaces=0, keeps=1)
    store.put(NAMESPACE, kept, json.dumps(PLAIN).encode(), replaces=0, keeps=1)
    desk.shelf(job_id).make()
    os.utime(desk.shelf(job_id).folder, (1, 1))
    assert [job.id for job in asyncio.run(desk.of(ANNA).listed())] == [kept]
    asyncio.run(tidy(desk))
    assert desk.shelf(job_id).folder.exists()
    assert store.get(NAMESPACE, job_id) is not None
    own = desk.of(ANNA)
    for ask in (own.get, own.view, own.delete):
        with pytest.raises(StoreUnavailable, match="another release"):
            asyncio.run(ask(job_id))


@pytest.mark.parametrize("script", [b"[]", b"{}", b'{"parts": [{"text": "a", "mood": 1}], "chapters": []}', b"no JSON"])
async def test_a_script_of_another_release_stops_no_runner(tmp_path: Path, script: bytes):
    services = make_speech_services(Speaker(chunks=1))
    desk = make_jobs(services, JobsConfig.varied({"lease_s": 0.5}), tmp_path)
    jobs = []
    for number in range(2):
        body = JobBody(input=f"Number {number}.", seed=1, voice="default", response_format="wav")
        jobs.append((await desk.of(ANNA).create(body, b""))[0])
    file = desk.shelf(jobs[0].id).folder / f"script-{jobs[0].record.script}.json"
    file.write_bytes(script)
    running = asyncio.create_task(JobRunner(desk, services, look_s=0.02).run())
    await until(lambda: desk.records.refresh()[jobs[1].id].record.status is JobStatus.SUCCEEDED)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert desk.records.refresh()[jobs[0].id].record.status is JobStatus.QUEUED, "for a replica that can read it"
    with pytest.raises(StoreUnavailable, match="another release"):
        await desk.of(ANNA).view(jobs[0].id)
