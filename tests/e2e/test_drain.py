"""SIGTERM, as a container runtime sends it: streams are heard to their end, nothing new begins, the process ends well."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

from serve.config import PROJECT
from tests.integration.cluster import ENVIRONMENT, FLAT, LONG, wait_until
from tests.ports import free_port

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 240.0
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


def test_sigterm_lets_streams_end_and_takes_nothing_new():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    # Short: Ray puts sockets below it, and a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "log"
        text = (PROJECT / "configs/dev.yaml").read_text().replace("port: 8000", f"port: {port}")
        config.write_text(text.replace("source: configs/dev.yaml", f"source: {config}"))
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "scripts.start", str(config), "--plain"],
                cwd=PROJECT,
                env={**os.environ, **ENVIRONMENT, "RAY_TMPDIR": folder},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            began = time.monotonic()
            while "Stop:  Ctrl-C" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() - began < START_TIMEOUT_S, log.read_text()
                time.sleep(0.2)
            whole = requests.post(f"{url}/v1/audio/speech", json=BODY, timeout=200)
            assert whole.status_code == 200
            with ThreadPoolExecutor(STREAMS) as pool:
                streams = [pool.submit(requests.post, f"{url}/v1/audio/speech", json=BODY, timeout=200) for _ in range(STREAMS)]
                wait_until(lambda: requests.get(f"{url}/health", timeout=10).json()["door"]["in_flight"] == STREAMS, 60.0)
                process.send_signal(signal.SIGTERM)
                newcomers = []
                wait_until(lambda: newcomers.append(newcomer(url)) or newcomers[-1] != "spoken", STOP_TIMEOUT_S)
                heard = [stream.result() for stream in streams]
            assert {reply.status_code for reply in heard} == {200}
            assert {reply.content for reply in heard} == {whole.content}
            assert newcomers[-1] in ("draining", "gone")
            assert process.wait(timeout=STOP_TIMEOUT_S) == 0
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=60)
