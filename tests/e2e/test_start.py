"""`make serve` as a newcomer types it: scripts.start on Serve's fast data path, HAProxy in front, back-pressure to the end."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from serve.config import PROJECT
from tests.integration.cluster import FLAT, free_port, wait_until

START_TIMEOUT_S = 180.0
STALL_S = 3.0
SENTENCE = "Many words follow one another here, and none of them is the last one yet. "
# Long enough to be under way whenever somebody looks: what a reader does not take yet is decoded ahead all the same.
LONG = {"input": SENTENCE * 200, "response_format": "pcm", "seed": 1, "cache": "no-store", **FLAT}


@dataclass
class Service:
    """A service started by scripts.start."""

    url: str
    port: int
    process: subprocess.Popen
    log: Path

    def speak(self, **fields: object) -> requests.Response:
        body = {"input": "Hello there.", "response_format": "pcm", "seed": 5, "cache": "no-store"} | fields
        return requests.post(f"{self.url}/v1/audio/speech", json=body, timeout=60)

    def slots_used(self) -> int:
        engines = requests.get(f"{self.url}/health", timeout=10).json()["acoustic"]
        return sum(engine["slots_used"] + engine["waiting"] for engine in engines)

    def in_flight(self) -> int:
        return requests.get(f"{self.url}/health", timeout=10).json()["door"]["in_flight"]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    port = free_port()
    # Short: Ray puts sockets below it, and a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "log"
        text = (PROJECT / "configs/dev.yaml").read_text()
        for right, ours in (
            ("port: 8000", f"port: {port}"),
            ("source: configs/dev.yaml", f"source: {config}"),
            ("checkpoint: demo", "checkpoint: small-random"),  # ends no sequence early; words are test_words.py's
            ("limits: {", f"limits: {{max_text_chars: 100000, stall_timeout_s: {STALL_S}, "),
        ):
            assert right in text
            text = text.replace(right, ours)
        config.write_text(text)
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "scripts.start", str(config)],
                cwd=PROJECT,
                env={**os.environ, "RAY_TMPDIR": folder, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                started = time.monotonic()
                while "Stop:  Ctrl-C" not in log.read_text():
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() - started < START_TIMEOUT_S, log.read_text()
                    time.sleep(0.2)
                yield Service(f"http://127.0.0.1:{port}", port, process, log)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def test_it_says_where_the_page_is_and_how_to_hear_something(service: Service):
    said = service.log.read_text()
    assert f"Page:  {service.url}/" in said
    assert f"Hear:  curl {service.url}/v1/audio/speech" in said
    assert "haproxy" in said.lower(), "the fast data path is on"


def test_the_announced_line_works_in_a_shell_and_ffmpeg_plays_it(service: Service, tmp_path: Path):
    (line,) = [line for line in service.log.read_text().splitlines() if "Hear:" in line]
    subprocess.run(line.split("Hear:")[1], shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    sound = tmp_path / "hello.wav"
    assert sound.stat().st_size > 10_000
    if shutil.which("ffmpeg"):
        played = subprocess.run(["ffmpeg", "-v", "error", "-i", sound, "-f", "null", "-"], capture_output=True, text=True)
        assert (played.returncode, played.stderr) == (0, "")


def test_streamed_audio_equals_buffered_audio(service: Service):
    streamed, buffered = service.speak(seed=7, stream=True), service.speak(seed=7, stream=False)
    assert streamed.headers["Transfer-Encoding"] == "chunked"
    assert int(buffered.headers["Content-Length"]) == len(buffered.content)
    assert streamed.content == buffered.content


def test_a_client_that_leaves_frees_its_slots_within_a_second(service: Service):
    for headers in ({}, {"x-request-disconnect-disabled": "?1"}):
        with requests.post(f"{service.url}/v1/audio/speech", json=LONG, headers=headers, stream=True, timeout=60) as reply:
            chunks = reply.iter_content(4096)  # kept: urllib3 closes the connection of one that is thrown away
            assert next(chunks)
            # Slots may look free in between: the demo's steps take a tenth of a millisecond and run ahead of the reader.
            wait_until(lambda: service.in_flight() > 0, 5.0)
        wait_until(lambda: service.slots_used() == service.in_flight() == 0, 1.5)


def test_a_reader_that_takes_nothing_is_cut_and_costs_no_memory(service: Service):
    """The sockets on the way hold some megabytes; beyond them the service waits, and then no longer."""
    body = requests.Request("POST", service.url, json=LONG | {"input": SENTENCE * 600}).prepare().body
    assert isinstance(body, bytes)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", service.port))
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        assert b" 200 " in client.recv(1024)
        wait_until(lambda: service.in_flight() == 0, 60.0)
    wait_until(lambda: service.slots_used() == 0, 1.5)
    wait_until(lambda: "reader_stalled" in service.log.read_text(), 5.0)
    assert service.speak(seed=1).status_code == 200, "the others never noticed"


def test_ctrl_c_ends_it(service: Service):
    os.killpg(service.process.pid, signal.SIGINT)
    service.process.wait(timeout=60)
    with pytest.raises(requests.ConnectionError):
        requests.get(service.url, timeout=5)
