"""Jobs on the real engine with the demo voice: interactive requests are spoken beside them, with the bytes they have alone."""

import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.demo_voice import demo_speaker
from tests.support.jobs import living
from tests.support.live_server import Live
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

REQUESTS = 20
JOBS = 4
BOOK = "\n\n".join(f"The answer of my sister was great. Please call {number} before the evening." for number in range(400))


def heard(live: Live) -> tuple[list[float], list[bytes]]:
    """First audio [ms] and bytes of interactive requests, one after the other."""
    times, audio = [], []
    for seed in range(REQUESTS):
        body = {"input": "That was great. Please sit down.", "response_format": "pcm", "seed": seed, "cache": "no-store"}
        began = time.perf_counter()
        url = f"{live.url}/v1/audio/speech"
        with requests.post(url, json={**body, "priority": "interactive"}, stream=True, timeout=60) as reply:
            assert reply.status_code == 200, reply.text
            pieces = reply.iter_content(4096)
            first = next(pieces)
            times.append(1000 * (time.perf_counter() - began))
            audio.append(first + b"".join(pieces))
    return times, audio


def told(name: str, times: list[float]) -> str:
    slowest = sorted(times)[int(0.95 * len(times))]
    return f"\n  {name}: first audio after {statistics.median(times):.0f} ms (median), {slowest:.0f} ms (95 %)"


def test_interactive_requests_are_spoken_beside_jobs(tmp_path: Path):
    with demo_speaker() as speaker, living(tmp_path, speaker, parallel=JOBS) as live:
        alone, audio = heard(live)
        jobs: list[dict[str, Any]] = [
            requests.post(f"{live.url}/v1/audio/jobs", json={"input": BOOK, "seed": seed}, timeout=60).json()
            for seed in range(JOBS)
        ]

        def done() -> int:
            found = (requests.get(f"{live.url}/v1/audio/jobs/{job['id']}", timeout=60).json() for job in jobs)
            return sum(one["progress"]["done"] for one in found)

        wait_until(lambda: done() >= JOBS, 300.0)
        before = done()
        beside, same = heard(live)
        spoken = done() - before
        print(told("no jobs", alone), told(f"{JOBS} jobs", beside), f"\n  parts of jobs spoken meanwhile: {spoken}")
        assert same == audio, "beside jobs as alone"
        assert spoken > 0, "jobs go on"
