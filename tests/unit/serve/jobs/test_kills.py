"""Killed at any moment, jobs go on: what is finished is not made again, and files have the bytes of a life without kills."""

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from pipeline.store.open import open_store
from serve.access.caller import Caller
from serve.jobs.body import JobBody
from serve.jobs.record import JobStatus
from serve.speech.job import RequestContext
from tests.support.job_process import make_service, start
from tests.support.services import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEXT = "# One\n\n" + "\n\n".join(f"Paragraph {number} says something." for number in range(10))
FORMATS = ("mp3", "flac", "wav", "opus")


def create_jobs(folder: Path, url: str) -> list[str]:
    """A job per format, of two keys."""
    service = make_service(folder, url)

    async def create() -> list[str]:
        ids = []
        for number, name in enumerate(FORMATS):
            text = f"{TEXT}\n\n# Two\n\nThis is job {number}."
            body = JobBody(input=text, input_type="markdown", response_format=name, seed=number, voice="default")
            context = RequestContext("id", Caller(f"key-{number % 2}"))
            ids.append((await service.of(context).create(body, b"{}"))[0].id)
        return ids

    return asyncio.run(create())


def finished_parts(folder: Path) -> dict[Path, tuple[int, int]]:
    """Each finished part, and what tells whether it was written again."""
    parts = {}
    for path in (folder / "jobs").glob("job-*/*.pcm"):
        status = os.stat(path)
        parts[path] = (status.st_ino, status.st_mtime_ns)
    return parts


def results(folder: Path, url: str, ids: list[str]) -> list[dict[str, bytes]]:
    """The files of each job by their kind: the finished one, and the samples by their keys."""
    rows = []
    service = make_service(folder, url)
    for job_id in ids:
        record = service.records.read(job_id).record
        assert (record.status, record.done) == (JobStatus.SUCCEEDED, record.parts)
        files = service.files(job_id)
        names = {path.name for path in files.folder.iterdir()}
        assert not [name for name in names if name.startswith(".")], "no draft is left"
        samples = {path.name: path.read_bytes() for path in files.folder.glob("*.pcm")}
        rows.append(samples | ({record.result: files.result_file(record.result).read_bytes()} if record.result else {}))
    return rows


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("sqlite", 10),
        pytest.param("sqlite", 50, marks=pytest.mark.nightly),
        pytest.param("redis", 50, marks=pytest.mark.nightly),
    ],
)
def test_kills_change_no_byte_and_cost_no_finished_part(tmp_path: Path, kind: str, most: int, demo_root):
    chance = random.Random(0)
    redis = RedisServer(tmp_path) if kind == "redis" else None
    urls = [f"{redis.url[:-1]}{number}" if redis else str(tmp_path / f"{number}" / "store.sqlite") for number in range(2)]
    try:
        undisturbed, disturbed = tmp_path / "0", tmp_path / "1"
        ids = create_jobs(undisturbed, urls[0])
        whole = start(undisturbed, urls[0])
        whole.join()
        assert whole.exitcode == 0
        expected = results(undisturbed, urls[0], ids)

        kills, known, ids = 0, {}, create_jobs(disturbed, urls[1])
        while kills < most:
            process = start(disturbed, urls[1])
            process.join(chance.uniform(0.0, 2.5))
            if process.exitcode is not None:  # it came to the end of its work
                ids += create_jobs(disturbed, urls[1])
                expected += expected[: len(FORMATS)]
                continue
            process.kill()
            process.join()
            kills += 1
            if redis is not None and kills % 7 == 0:
                redis.kill()
                redis.start()
            now = finished_parts(disturbed)
            assert known.items() <= now.items(), "a finished part stays as it is"
            known = now
        last = start(disturbed, urls[1])
        last.join()
        assert last.exitcode == 0
        assert known.items() <= finished_parts(disturbed).items()
        assert results(disturbed, urls[1], ids) == expected
    finally:
        if redis is not None:
            redis.kill()


def test_a_job_of_a_dead_replica_is_taken_over_and_only_by_one(tmp_path: Path, demo_root):
    url = str(tmp_path / "store.sqlite")
    (job_id, *_) = create_jobs(tmp_path, url)
    first = start(tmp_path, url)
    while not list((tmp_path / "jobs").glob("*/*.pcm")):
        time.sleep(0.01)
    first.kill()
    others = [start(tmp_path, url) for _ in range(3)]
    for other in others:
        other.join()
    record = make_service(tmp_path, url).records.read(job_id).record
    assert [other.exitcode for other in others] == [0, 0, 0]
    assert record.status is JobStatus.SUCCEEDED
    assert open_store(url).changes("jobs").entries, "the records are still there"
