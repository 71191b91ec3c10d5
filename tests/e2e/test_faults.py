"""Faults of one service: a slow proxy, a dead or differing process, any process killed, a drain, minutes of chaos."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests

from serve.commands.launch.processes import Process, end_session, members
from serve.config.app_config import PROJECT
from tests.support.ports import free_port
from tests.support.recovery import recovered
from tests.support.service import FLAT, LONG
from tests.support.service_process import say_live
from tests.support.started import START_TIMEOUT_S, STOP_TIMEOUT_S, Started, nothing_is_left, short_folder, started
from tests.support.waiting import is_ready, wait_until

pytestmark = pytest.mark.nightly

# A machine with other work: what starts slowly is waited for.


@pytest.mark.timeout(900)
def test_a_proxy_that_is_slow_to_be_ready_is_not_killed(home: Path, folder: Path):
    slow = {"IMPORT_PATH: serve.protocols.proxy_middleware": "IMPORT_PATH: tests.support.slow_proxy"}
    with started("--plain", home=home, folder=folder, changes=slow) as service:
        service.wait_until_ready()
        assert "is unhealthy. Shutting down" not in service.output()
        reply = requests.post(f"{service.url}/v1/audio/speech", json={"input": "Five.", "seed": 1}, timeout=60)
        assert reply.status_code == 200


# A cluster that died, a supervisor that died: what was started ends with an exit code, and the next start comes up.


def speaks(service: Started) -> bool:
    body = {"input": "Five one one.", "seed": 1, "cache": "no-store"}
    return requests.post(f"{service.url}/v1/audio/speech", json=body, timeout=60).status_code == 200


def code_after_killing(title: str, service: Started, capsys: pytest.CaptureFixture[str]) -> int:
    """What serve.commands.launch.start ends with by itself."""
    os.kill(service.process_titled(title).pid, signal.SIGKILL)
    began = time.monotonic()
    code = service.exit_code()
    with capsys.disabled():
        print(f"\n  {title} killed: everything ended after {time.monotonic() - began:.1f} s")
    return code


@pytest.mark.timeout(900)
def test_a_dead_agent_takes_everything_with_it_and_the_exit_code_says_so(home: Path, folder: Path, capsys):
    """Ray's raylet ends with its dashboard agent; `serve run` stays for ever and speaks to nobody."""
    with started(home=home, folder=folder) as service:
        service.wait_until_ready()
        session = service.serve_run().session
        assert code_after_killing("ray::DashboardAgent", service, capsys) == 1
        assert "Ray's raylet ended" in service.output()
        nothing_is_left(session, service.url)


@pytest.mark.timeout(900)
def test_the_next_start_ends_what_a_killed_one_left_and_a_dead_gcs_ends_that_one(home: Path, folder: Path, capsys):
    port = free_port()
    with started(home=home, folder=folder, port=port) as killed:
        killed.wait_until_ready()
        session = killed.serve_run().session
        killed.process.kill()
        killed.process.wait()
        assert members(session), "nobody has ended them yet"
        assert speaks(killed)
        with started(home=home, folder=folder, port=port) as service:
            service.wait_until_ready()
            assert "ended what an earlier start has left running: " in service.output()
            assert "haproxy" in service.output().splitlines()[0]
            assert not members(session)
            assert speaks(service)
            session = service.serve_run().session
            assert code_after_killing("gcs_server", service, capsys) == 1
            assert "Ray's gcs_server ended" in service.output()
            nothing_is_left(session, service.url)


# Two replicas of one version, of which one could not compile: they are named, and no reply is made of both.

CHANGES = {
    "checkpoint: demo": "checkpoint: small-random",
    "- name: AcousticModel\n        num_replicas: 1": "- name: AcousticModel\n        num_replicas: 2",
    "num_cpus: 0.8": "num_cpus: 0.4",  # two of them fit into the same machine
}
TWIN = {"input": "Many words follow one another here.", "response_format": "pcm", "seed": 5, "cache": "no-store", **FLAT}
REPLIES = 12
REPLACED_S = 120.0
TOO_OLD = "#!/bin/sh\necho \"error: unrecognized command-line option '-std=c++20'\" >&2\nexit 1\n"


def health_of(service: Started) -> dict[str, Any]:
    return requests.get(f"{service.url}/health", timeout=10).json()


def replicas_of(service: Started) -> set[int]:
    return {process.pid for process in service.processes() if "ray::ServeReplica:chattts:AcousticModel" in process.command()}


def kinds_of(service: Started) -> set[bytes]:
    """What one request sounds like, asked often enough to come to both replicas."""
    replies = [requests.post(f"{service.url}/v1/audio/speech", json=TWIN, timeout=100) for _ in range(REPLIES)]
    assert {reply.status_code for reply in replies} == {200}
    return {reply.content for reply in replies}


def replaced(service: Started, pid: int) -> int:
    """Kills a replica; returns the process that stands in for it."""
    others = replicas_of(service) - {pid}
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(replicas_of(service) - others - {pid}) == 1, REPLACED_S)
    (successor,) = replicas_of(service) - others - {pid}
    return successor


def test_a_replica_that_could_not_compile_is_named_until_it_is_like_the_other(tmp_path: Path):
    tools, real = tmp_path / "tools", shutil.which("c++")
    assert real is not None
    tools.mkdir()
    compiler = tools / "c++"
    compiler.write_text(right := f'#!/bin/sh\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    with (
        short_folder() as folder,
        started(home=tmp_path, folder=folder, changes=CHANGES, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}") as service,
    ):
        service.wait_until_ready()
        wait_until(lambda: len(health_of(service)["acoustic"]) == 2, REPLACED_S)
        (alike,) = kinds_of(service)
        assert "differing_replicas" not in health_of(service)

        compiler.write_text(TOO_OLD)
        shutil.rmtree(tmp_path / "native")
        odd = replaced(service, min(replicas_of(service)))
        wait_until(lambda: "differing_replicas" in health_of(service), REPLACED_S)
        (differing,) = health_of(service)["differing_replicas"].values()
        assert list(differing.values()) == [1, 1]
        kinds = kinds_of(service)
        assert alike in kinds
        assert len(kinds) == 2, "each replica says it its own way, and no reply is made of both"
        wait_until(lambda: "replicas of AcousticModel differ" in service.output())

        compiler.write_text(right)
        replaced(service, odd)
        wait_until(lambda: "replicas of AcousticModel are alike again" in service.output(), REPLACED_S)
        wait_until(lambda: len(health_of(service)["acoustic"]) == 2, REPLACED_S)
        assert kinds_of(service) == {alike}
        assert "differing_replicas" not in health_of(service)


# `make serve` while somebody listens: whatever process is killed, every sample is heard, at most after a pause.

TEXT = " ".join(f"Five one one, two five five, and {number} more." for number in range(8))
HEARD_BYTES = 48_000  # a second
ITS_OWN = re.compile(r"/\S*/|\d+| --.*")  # folders, numbers, options


def kind(process: Process, home: Path) -> str:
    """What a process is, whichever start it belongs to."""
    return ITS_OWN.sub("", process.command().replace(str(home), ""))[:72].strip()


@pytest.mark.timeout(3600)
def test_whatever_process_is_killed_a_listener_hears_the_whole(home: Path, folder: Path, capsys):
    with started("--restart", home=home, folder=folder) as service:
        service.wait_until_ready()
        twin, complaints = say_live(service.url, TEXT).communicate(timeout=300)
        assert len(twin) > 10 * HEARD_BYTES, complaints
        silent_s = []
        for name in sorted({kind(process, home) for process in service.processes()}):
            wait_until(lambda: is_ready(service.url), START_TIMEOUT_S)
            victim = next((process for process in service.processes() if kind(process, home) == name), None)
            if victim is None:
                continue  # it ended with one that was killed before, and is not needed
            saying = say_live(service.url, TEXT)
            audio = saying.stdout.read(HEARD_BYTES)
            os.kill(victim.pid, signal.SIGKILL)
            times = [time.monotonic()]
            while piece := saying.stdout.read1():
                audio += piece
                times.append(time.monotonic())
            assert saying.wait(60) == 0, f"{name}: {saying.stderr.read().decode()}\n{service.output()[-4000:]}"
            assert audio == twin, name
            silent_s.append(max(later - earlier for earlier, later in pairwise(times)))
            with capsys.disabled():
                print(f"\n  {name}: a pause of {silent_s[-1]:.1f} s, all heard after {times[-1] - times[0]:.1f} s")
        assert service.process.poll() is None
        assert "starting the service again" in service.output()
        with capsys.disabled():
            recovered("N-1", max(silent_s))


# SIGTERM, as a container runtime sends it: streams are heard to their end, nothing new begins, the process ends well.

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
            replies = [stream.result() for stream in streams]
        assert {reply.status_code for reply in replies} == {200}
        assert {reply.content for reply in replies} == {whole.content}
        assert newcomers[-1] in ("draining", "gone")
        assert service.exit_code() == 0
        nothing_is_left(session, url)


# Minutes of what `make chaos` does for an hour: every reply right or visibly cut, nothing left, all as fast as before.

MINUTES, SEED = 4, 3  # most kinds of faults come once; `make chaos` draws other orders


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("front", ["HAProxy", "--plain"])
def test_nothing_is_wrong_or_left_after_minutes_of_chaos(tmp_path: Path, front: str):
    out = tmp_path / "chaos.json"
    command = [sys.executable, "-m", "scripts.chaos", "--minutes", str(MINUTES), "--seed", str(SEED), "--out", str(out)]
    command += [front] if front == "--plain" else []
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=1400)
    assert out.exists(), done.stderr[-4000:]
    report = json.loads(out.read_text())
    assert report["failures"] == [], json.dumps(report, indent=1)
    assert report["ends"]["whole"] > 100, "there was traffic"
    assert len({hit["fault"] for hit in report["faults"]}) > 5, "there were faults"
    assert done.returncode == 0
