"""SIGTERM, as a container runtime sends it: streams are heard to their end, nothing new begins, the process ends well."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from serve.commands.launch.processes import end_session
from tests.support.cluster import FLAT, LONG
from tests.support.ports import free_port
from tests.support.started import STOP_TIMEOUT_S, nothing_is_left, started
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

STREAMS = 4
BODY = {"input": LONG * 2, "response_format": "pcm", "seed": 1, "deadline_ms": 200_000, "cache": "no-store", **FLAT}


def newcomer(url: str) -> str:
    """What becomes of a request that comes now."""
    try:
        reply = requests.post(f"{url}/v1/audio/speech", json={"input": "Hello."}, timeout=60)
    except requests.ConnectionError:
        return "gone"
    code: str = "spoken" if reply.status_code == 200 else reply.json()["error"]["code"]
    return code


@contextlib.contextmanager
def another_cluster(folder: Path) -> Iterator[int]:
    """Somebody else's Ray, the last one that was started in the same temporary folder; yields its port."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}", "--num-cpus=1"]
    command += ["--include-dashboard=false", f"--temp-dir={folder / 'ray'}", "--object-store-memory=100000000"]
    with (folder / "other.log").open("w") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: (folder / "ray/ray_current_cluster").exists() or process.poll() is not None, 120.0)
        assert process.poll() is None, (folder / "other.log").read_text()
        yield port
    finally:
        end_session(process.pid, 0.0)
        process.wait()


def test_sigterm_lets_streams_end_and_takes_nothing_new(home: Path, folder: Path):
    with another_cluster(folder) as other, started("--plain", home=home, folder=folder) as service:
        service.wait_until_ready()
        url, session = service.url, service.serve_run().session
        assert f":{other}" not in (service.run_folder() / "env").read_text(), "it joined a cluster that is not its own"
        whole = requests.post(f"{url}/v1/audio/speech", json=BODY, timeout=200)
        assert whole.status_code == 200
        with ThreadPoolExecutor(STREAMS) as pool:
            streams = [pool.submit(requests.post, f"{url}/v1/audio/speech", json=BODY, timeout=200) for _ in range(STREAMS)]
            wait_until(lambda: requests.get(f"{url}/health", timeout=10).json()["admission"]["in_flight"] == STREAMS, 60.0)
            service.process.send_signal(signal.SIGTERM)
            newcomers: list[str] = []
            wait_until(lambda: newcomers.append(newcomer(url)) or newcomers[-1] != "spoken", STOP_TIMEOUT_S)
            heard = [stream.result() for stream in streams]
        assert {reply.status_code for reply in heard} == {200}
        assert {reply.content for reply in heard} == {whole.content}
        assert newcomers[-1] in ("draining", "gone")
        assert service.exit_code() == 0
        nothing_is_left(session, url)
