"""Upkeep: what is too old goes, what somebody may still need stays."""

import asyncio
import json
import os
from pathlib import Path

from pipeline.store.open import open_store
from serve.jobs.records import NAMESPACE
from serve.jobs.upkeep import tidy
from tests.support.fakes import Speaker, make_jobs, make_speech_services

BATCH = {
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
    "batch": {"input_file_id": "file-1", "endpoint": "/v1/audio/speech", "completion_window": "24h"},
}


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
    assert asyncio.run(desk.listed("anna")) == []
    assert asyncio.run(desk.load()).jobs == 0
    tidy(desk)
    assert sorted(path.name for path in tmp_path.iterdir() if "store" not in path.name) == ["file-3.jsonl", young]
    assert [entry.key for entry in store.changes(NAMESPACE).entries if entry.versions] == [young]
