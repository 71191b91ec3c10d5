"""Jobs beside interactive requests, which are served as without them: on the real engine, and with ten thousand that wait."""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from serve.access.caller import Caller
from serve.jobs.body import JobBody
from serve.jobs.record import JobStatus
from serve.jobs.service import PREFIX
from serve.speech.job import RequestContext
from tests.support.demo_voice import demo_speaker
from tests.support.fakes import Speaker
from tests.support.jobs import living
from tests.support.live_server import Live
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

BOOK = "\n\n".join(f"The answer of my sister was great. Please call {number} before the evening." for number in range(400))


def replies(live: Live, name: str, count: int, text: str) -> list[bytes]:
    """The bytes of interactive requests, one after the other; prints the times to their first audio."""
    times, audio = [], []
    for seed in range(count):
        body = {"input": text, "response_format": "pcm", "seed": seed, "cache": "no-store", "priority": "interactive"}
        began = time.perf_counter()
        with requests.post(f"{live.url}/v1/audio/speech", json=body, stream=True, timeout=60) as reply:
            assert reply.status_code == 200, reply.text
            pieces = reply.iter_content(4096)
            first = next(pieces)
            times.append(1000 * (time.perf_counter() - began))
            audio.append(first + b"".join(pieces))
    slowest = sorted(times)[int(0.95 * len(times))]
    print(f"\n  {name}: first audio after {statistics.median(times):.1f} ms (median), {slowest:.1f} ms (95 %)")
    return audio


def test_interactive_requests_are_spoken_beside_jobs(tmp_path: Path):
    text = "That was great. Please sit down."
    with demo_speaker() as speaker, living(tmp_path, speaker, parallel=4) as live:
        alone = replies(live, "no jobs", 20, text)
        jobs: list[dict[str, Any]] = [
            requests.post(f"{live.url}/v1/audio/jobs", json={"input": BOOK, "seed": seed}, timeout=60).json()
            for seed in range(4)
        ]

        def parts_done() -> int:
            states = (requests.get(f"{live.url}/v1/audio/jobs/{job['id']}", timeout=60).json() for job in jobs)
            return sum(state["progress"]["done"] for state in states)

        wait_until(lambda: parts_done() >= 4, 300.0)
        before = parts_done()
        assert replies(live, "4 jobs", 20, text) == alone
        assert parts_done() > before, "jobs go on"


def test_ten_thousand_jobs_delay_nobody_else(tmp_path: Path):
    waiting = 10_000
    text = "\n\n".join(f"Paragraph {number} of a long text." for number in range(40))
    with living(tmp_path, Speaker(chunks=2, pause_s=0.05), max_jobs=20_000, lease_s=15.0, look_s=0.5, disk_mib=1 << 24) as live:
        for name in ("warming up", "without jobs"):
            replies(live, name, 200, "Hello there.")
        service = live.services.jobs
        body = JobBody(input=text, seed=1, response_format="wav")
        first, _ = asyncio.run(service.of(RequestContext("id", Caller("busy"))).create(body, b""))
        record, script = first.record, f"script-{first.record.script}.json"
        for number in range(waiting):
            folder = service.files(f"{PREFIX}{number:05d}").folder
            folder.mkdir()
            (folder / script).symlink_to(service.files(first.id).folder / script)
            service.records.create(f"{PREFIX}{number:05d}", record)
        wait_until(lambda: len(service.records.refresh()) == waiting + 1)
        replies(live, f"{waiting} jobs wait", 200, "Hello there.")
        began = time.monotonic()
        mine = requests.post(f"{live.url}/v1/audio/jobs", json={"input": "The last comes first.", "seed": 2}, timeout=60).json()
        url = f"{live.url}/v1/audio/jobs/{mine['id']}"
        wait_until(lambda: requests.get(url, timeout=60).json()["status"] == "succeeded", 120.0)
        print(f"  the job of another key took {time.monotonic() - began:.1f} s")
        unfinished = [job for job in service.records.refresh().values() if job.record.status is not JobStatus.SUCCEEDED]
        assert len(unfinished) > waiting - 500, "the others still wait"
