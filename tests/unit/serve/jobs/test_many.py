"""Ten thousand jobs wait: an interactive request is served as without them, and so is the job of a key that comes last."""

import asyncio
import statistics
import time
from pathlib import Path

import pytest
import requests

from serve.access.caller import Caller
from serve.jobs.body import JobBody
from serve.jobs.desk import PREFIX
from serve.jobs.record import JobStatus
from serve.speech.job import RequestContext
from tests.support.fakes import Speaker
from tests.support.jobs import living
from tests.support.live_server import Live
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

JOBS = 10_000
REQUESTS = 200


def first_audio_ms(live: Live) -> list[float]:
    """Of interactive requests, one after the other."""
    times = []
    for number in range(REQUESTS):
        body = {"input": "Hello there.", "response_format": "pcm", "priority": "interactive", "seed": number}
        began = time.perf_counter()
        with requests.post(f"{live.url}/v1/audio/speech", json=body, stream=True, timeout=60) as reply:
            assert reply.status_code == 200
            next(reply.iter_content(1))
            times.append(1000 * (time.perf_counter() - began))
    return times


def told(name: str, times: list[float]) -> str:
    slowest = sorted(times)[int(0.95 * len(times))]
    return f"\n  {name}: first audio after {statistics.median(times):.1f} ms (median), {slowest:.1f} ms (95 %)"


def test_ten_thousand_jobs_delay_nobody_else(tmp_path: Path):
    text = "\n\n".join(f"Paragraph {number} of a long text." for number in range(40))
    with living(tmp_path, Speaker(chunks=2, pause_s=0.05), max_jobs=20_000, lease_s=15.0, look_s=0.5, disk_mib=1 << 24) as live:
        first_audio_ms(live)
        alone = first_audio_ms(live)
        desk = live.services.jobs
        body = JobBody(input=text, seed=1, response_format="wav")
        first, _ = asyncio.run(desk.of(RequestContext("id", Caller("busy"))).create(body, b""))
        record, script = first.record, f"script-{first.record.script}.json"
        for number in range(JOBS):
            folder = desk.shelf(f"{PREFIX}{number:05d}").folder
            folder.mkdir()
            (folder / script).symlink_to(desk.shelf(first.id).folder / script)
            desk.records.create(f"{PREFIX}{number:05d}", record)
            if number == 0:
                few = first_audio_ms(live)
        wait_until(lambda: len(desk.records.refresh()) == JOBS + 1)
        first_audio_ms(live)
        crowded = first_audio_ms(live)
        began = time.monotonic()
        mine = requests.post(f"{live.url}/v1/audio/jobs", json={"input": "The last comes first.", "seed": 2}, timeout=60).json()
        one = f"{live.url}/v1/audio/jobs/{mine['id']}"
        wait_until(lambda: requests.get(one, timeout=60).json()["status"] == "succeeded", 120.0)
        print(told("without jobs", alone), told("two jobs", few), told(f"{JOBS} jobs wait", crowded))
        print(f"  the job of another key took {time.monotonic() - began:.1f} s")
        unfinished = [job for job in desk.records.refresh().values() if job.record.status is not JobStatus.SUCCEEDED]
        assert len(unfinished) > JOBS - 500, "the others still wait"
