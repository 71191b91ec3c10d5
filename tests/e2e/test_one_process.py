"""configs/box.yaml: the whole service in one process, without Ray. tests/integration/shared_app asks it what clients ask."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from serve.config.app_config import PROJECT
from serve.local.local_service import LIMITS
from tests.support.home_assistant import home_assistant_reads
from tests.support.ports import free_port
from tests.support.riva_server import Caller, refusal
from tests.support.service import FLAT, is_idle
from tests.support.services import needed_program
from tests.support.started import Started, short_folder, started
from tests.support.waiting import wait_until

TEXT = "Hello there. Here is a second sentence."
SENTENCE = "Many words follow one another here, and none of them is the last one yet. "
LONG = {"input": SENTENCE * 12, "response_format": "pcm", "seed": 1, "cache": "no-store", **FLAT}
MOST_MEMORY = 310_000_000  # bytes, of both processes together
RIVA = {"sample_rate_hz": 24_000, "custom_configuration": {"seed": "5"}}


@dataclass
class Box:
    """A service in one process and its ports."""

    of: Started
    grpc: int
    wyoming: int

    @property
    def pid(self) -> int:
        return self.of.process.pid

    def speak(self, **fields: Any) -> requests.Response:
        body = {"input": TEXT, "response_format": "pcm", "seed": 5, "cache": "no-store"} | fields
        return requests.post(f"{self.of.url}/v1/audio/speech", json=body, timeout=120)

    def health(self) -> dict[str, Any]:
        report: dict[str, Any] = requests.get(f"{self.of.url}/health", timeout=30).json()
        return report

    def is_idle(self) -> bool:
        return is_idle(self.health())


@pytest.fixture(scope="module")
def box(home: Path, folder: Path) -> Iterator[Box]:
    with started_box(home, folder) as running:
        yield running


class started_box:
    """A box that is ready, to its end."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._grpc, self._wyoming = free_port(), free_port()
        changes = {
            "runtime: process": f"runtime: process\ngrpc_options: {{port: {self._grpc}}}",
            "limits: {": f"wyoming: {{port: {self._wyoming}}}\n      limits: {{",
        }
        self._started = started(home=home, folder=folder, changes=changes, shipped="box")

    def __enter__(self) -> Box:
        running = self._started.__enter__()
        running.wait_until_ready()
        return Box(running, self._grpc, self._wyoming)

    def __exit__(self, *error: Any) -> None:
        self._started.__exit__(*error)


def test_it_says_what_it_is_and_what_it_cannot_do(box: Box):
    output = box.of.output()
    assert f"Page:  {box.of.url}/" in output
    assert all(limit in output for limit in LIMITS.values())
    assert box.health()["runtime_limits"] == LIMITS
    assert requests.get(f"{box.of.url}/ready", timeout=10).json() == {"status": "ready"}
    assert "<html" in requests.get(f"{box.of.url}/", headers={"Accept": "text/html"}, timeout=10).text


def test_it_is_one_process_and_the_one_that_reads_texts(box: Box):
    assert box.speak().status_code == 200
    here = psutil.Process(box.pid)
    processes = [here, *here.children(recursive=True)]
    assert len(processes) == 2, processes
    assert sum(process.memory_full_info().pss for process in processes) < MOST_MEMORY


def test_it_loads_neither_ray_nor_torch_nor_what_a_fleet_needs():
    program = "import sys, serve.commands.launch.one_process; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert not {"ray", "torch", "aiomqtt", "paho", "cryptography", "grpc", "requests"} & set(done.stdout.split())


def test_it_speaks_what_the_command_line_speaks(box: Box, tmp_path: Path):
    path = tmp_path / "said.wav"
    command = [sys.executable, "-m", "serve.commands", "say", TEXT, "--seed", "5", "-o", str(path)]
    subprocess.run(command, cwd=PROJECT, env=box.of.environment, check=True, capture_output=True)
    assert path.read_bytes()[44:] == box.speak(response_format="wav", stream=False).content[44:]


def test_the_other_protocols_speak_the_same_bytes(box: Box):
    expected = box.speak().content
    riva = Caller(f"127.0.0.1:{box.grpc}")
    assert riva.whole(text=TEXT, **RIVA, timeout=60)[0].audio == expected
    assert b"".join(reply.audio for reply in riva.stream({"text": TEXT, **RIVA}, timeout=60)) == expected
    assert refusal(lambda: riva.whole(text=TEXT, voice_name="nobody")) == ("INVALID_ARGUMENT", "voice_not_found")
    assert refusal(lambda: riva.stream({"text": ""})) == ("INVALID_ARGUMENT", "out_of_range")
    assert len(asyncio.run(home_assistant_reads(box.wyoming, TEXT, None)) or b"") > 10_000


def test_prometheus_reads_it(box: Box):
    box.speak()
    reply = requests.get(f"{box.of.url}/metrics", timeout=30)
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'ray_chattts_requests_total{application="chattts",deployment="Ingress"' in reply.text
    assert "ray_chattts_ttfa_seconds_bucket" in reply.text


def send_for_ever(client: socket.socket, data: bytes) -> None:
    for _ in range(1000):
        client.sendall(data)
        time.sleep(0.001)


def test_headers_that_never_end_are_cut(box: Box):
    with socket.create_connection(("127.0.0.1", box.of.port), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):
            send_for_ever(client, b"X-Filler: " + b"y" * 1000 + b"\r\n")
    assert box.speak().status_code == 200


def test_a_dead_reader_of_texts_is_replaced(box: Box):
    (reader,) = [child for child in psutil.Process(box.pid).children() if "pipeline.text.isolation.worker" in child.cmdline()]
    reader.kill()
    wait_until(lambda: box.speak().status_code == 200, 30.0)


def test_sigterm_lets_every_stream_end_and_takes_nothing_new(box: Box, home: Path):
    expected = box.speak(**LONG).content
    with (
        short_folder() as folder,
        started_box(home, folder) as ending,
        requests.post(f"{ending.of.url}/v1/audio/speech", json=LONG, stream=True, timeout=60) as reply,
    ):
        stream = reply.iter_content(1000)
        begun = next(stream)
        ending.of.process.send_signal(signal.SIGTERM)
        wait_until(lambda: requests.get(f"{ending.of.url}/ready", timeout=10).status_code == 503, 10.0)
        refused = ending.speak()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert begun + b"".join(stream) == expected
        assert ending.of.exit_code() == 0


def test_it_is_shown_and_stopped_by_its_port(box: Box, home: Path):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "serve.commands", *words]
        return subprocess.run(command, cwd=PROJECT, env=box.of.environment, capture_output=True, text=True, check=False)

    assert run("status").stdout == f"{box.of.url}  ready  process {box.pid}\n"
    with short_folder() as folder, started_box(home, folder) as ending:
        assert "name the port of one" in run("stop").stderr
        assert run("stop", str(ending.of.port)).returncode == 0
        assert ending.of.exit_code() == 0
    assert run("stop", str(ending.of.port)).returncode == 1
    assert box.health()["admission"]["in_flight"] == 0, "the other one goes on"


def test_ctrl_c_ends_it_at_once(home: Path):
    with short_folder() as folder, started_box(home, folder) as ending:
        ending.of.process.send_signal(signal.SIGINT)
        assert ending.of.process.wait(timeout=20) == 0


@pytest.mark.parametrize("option", ["--restart", "--plain"])
def test_options_of_ray_are_refused(box: Box, option: str):
    command = [sys.executable, "-m", "serve.commands", "start", str(box.of.config), option]
    done = subprocess.run(command, cwd=PROJECT, env=box.of.environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "runtime: process" in done.stderr


def test_a_taken_port_is_named(box: Box):
    command = [sys.executable, "-m", "serve.commands", "start", str(box.of.config)]
    done = subprocess.run(command, cwd=PROJECT, env=box.of.environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"{box.of.port} is taken" in done.stderr


def test_its_unit_of_systemd_is_right():
    analyze = needed_program("systemd-analyze", "systemd")
    command = [analyze, "verify", "docs/chattts-serve.service"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert not complaints
