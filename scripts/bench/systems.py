"""Systems: what is compared, each in processes of its own, of which only the one being measured runs.

In:    which system
Out:   Timelines
Owns:  the processes, their ports and folders; stops every one of them at the end
Never: torch, Ray: this process only asks

    U       the ChatTTS package behind a lock, one request after another
    S       the same package's batch call under @serve.batch, behind Ray Serve's HTTP
    P       this service: `chattts-serve start` on a configuration
    P0      the same engine, vocoder and spine in one process, without Serve

A process that is not measured is stopped by SIGSTOP, all of its Ray included, and continued when its turn comes: it keeps
its memory and takes no time from the others.
"""

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import requests
import yaml

from pipeline.checkpoint.locate import resolve
from pipeline.paths import cache_home
from scripts.bench.client import Endpoint, http_speaker
from scripts.bench.load import Load, drive
from scripts.bench.processes import environment, parents, resident_bytes, stat
from scripts.bench.record import ROOT
from scripts.bench.settings import Settings, document
from scripts.bench.timeline import Timeline
from scripts.bench.workload import Utterance

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
THAW_TIMEOUT_S = 60.0
POLL_S = 0.05
# Ray gives its workers niceness 15: whatever else the machine does would slow them, and not U or P0.
ENVIRONMENT = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class System:
    """Something that speaks."""

    name: str

    def run(self, load: Load) -> list[Timeline]:
        """Put a load on it."""
        raise NotImplementedError

    def pids(self) -> list[int]:
        """Every process of it."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Take no more processor time."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End."""
        raise NotImplementedError

    def resident_bytes(self) -> int:
        """Memory of all its processes."""
        return sum(resident_bytes(pid) for pid in self.pids())

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class InProcess(System):
    """U or P0: a worker at the other end of a pipe."""

    def __init__(self, name: str, function: str, *arguments: object) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_launch, args=(theirs, function, *arguments), daemon=True, name=name)
        self._process.start()
        theirs.close()
        self._answer()

    def ask(self, order: str, *arguments: object) -> Any:
        """Have an order carried out."""
        self._pipe.send((order, arguments))
        return self._answer()

    def run(self, load: Load) -> list[Timeline]:
        timelines: list[Timeline] = self.ask("load", load)
        return timelines

    def pids(self) -> list[int]:
        pid = self._process.pid
        return [pid] if pid is not None and self._process.is_alive() else []

    def close(self) -> None:
        self.thaw()
        with contextlib.suppress(OSError):
            self._pipe.send(("end", ()))
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"the process of {self.name} has ended with {self._process.exitcode}") from None
        if kind == "failed":
            raise RuntimeError(f"{self.name} failed:\n{value}")
        return value


class Remote(System):
    """A server that was started elsewhere."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self.endpoint = endpoint

    def run(self, load: Load) -> list[Timeline]:
        return asyncio.run(self._run(load))

    async def _run(self, load: Load) -> list[Timeline]:
        async with http_speaker(self.endpoint) as speak:
            return await drive(load, speak)

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        """Leaves the server running."""


class Served(Remote):
    """S or P: a command that starts Ray and listens, in a folder of its own by which its processes are known."""

    def __init__(self, name: str, endpoint: Endpoint, command: list[str], folder: Path, **variables: str) -> None:
        super().__init__(name, endpoint)
        self._folder = folder
        self.log = folder / "log"
        began = time.monotonic()
        with self.log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT, "RAY_TMPDIR": str(folder), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_ready(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - began

    def thaw(self) -> None:
        super().thaw()
        self._wait_until_ready(THAW_TIMEOUT_S)

    def pids(self) -> list[int]:
        """Its descendants, and the processes that have its folder in their environment: Ray hides either from some."""
        mark, family = f"RAY_TMPDIR={self._folder}".encode(), parents()
        found = {pid for pid in family if mark in environment(pid)} | {self._process.pid}
        while more := {pid for pid, parent in family.items() if parent in found and pid not in found}:
            found |= more
        return sorted(found & family.keys())

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        ours = {pid: stat(pid).born for pid in self.pids()}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_TIMEOUT_S)
        for pid, born in ours.items():  # a number may belong to another process by now
            with contextlib.suppress(OSError):
                if stat(pid).born == born:
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def health(self) -> dict[str, Any]:
        """The service's own report."""
        found: dict[str, Any] = requests.get(f"{self.endpoint.url}/health", timeout=10).json()
        return found

    def _wait_until_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}:\n{_tail(self.log)}")
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{self.endpoint.url}/ready", timeout=5).status_code == 200:
                    return
            time.sleep(POLL_S)
        raise RuntimeError(f"{self.name} was not ready after {timeout_s:g} s:\n{_tail(self.log)}")


def start_upstream(checkpoint: str, threads: int) -> InProcess:
    """Start the upstream ChatTTS package."""
    return InProcess("U", "run_upstream", resolve(checkpoint, cache_home()), threads)


def start_ours(settings: Settings) -> InProcess:
    """Start this service's pipeline in one process, without Serve."""
    return InProcess("P0", "run_ours", document(settings, 0, None)["applications"][0]["args"]["pipeline"])


def start_static(checkpoint: str, threads: int) -> Served:
    """Start the upstream package's batch call behind Serve."""
    folder, port = _folder(), free_port()
    command = [sys.executable, "-m", "scripts.bench.static_batch", str(resolve(checkpoint, cache_home()))]
    command += ["--port", str(port), "--threads", str(threads), "--temp-dir", str(folder)]
    endpoint = Endpoint(f"http://127.0.0.1:{port}", extra=_steps)
    # Without a token, so that none is written into the user's home, and heard on 127.0.0.1 alone; P has its own ways to both.
    alone = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return Served("S", endpoint, command, folder, **alone)


def copy_bandwidth() -> float:
    """Bytes a second this machine copies, by a process that ends: its threads are not to stay in anybody's way."""
    done = subprocess.run([sys.executable, "-m", "scripts.bench.physics"], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def set_batch_size(static: Served, size: int) -> None:
    """How many requests S gathers."""
    requests.put(f"{static.endpoint.url}/batch_size", json=size, timeout=10).raise_for_status()


def start_service(settings: Settings) -> Served:
    """Start this service."""
    resolve(settings.checkpoint, cache_home())  # made now, if it has to be: starting is timed
    folder, port = _folder(), free_port()
    source = folder / "config.yaml"
    source.write_text(yaml.safe_dump(document(settings, port, source)))
    command = [sys.executable, "-m", "scripts.launch.start", str(source), *(["--plain"] if settings.path == "plain" else [])]
    return Served("P", Endpoint(f"http://127.0.0.1:{port}", extra=_seeded), command, folder)


class SystemPool:
    """The systems of a run. One at a time is awake, the others are stopped."""

    def __init__(self) -> None:
        self._systems: dict[str, System] = {}
        self._keys: dict[str, object] = {}

    def is_new(self, name: str, key: object) -> bool:
        """Whether it would have to be started."""
        return name not in self._systems or self._keys[name] != key

    def take(self, name: str, key: object, start: Callable[[], System]) -> System:
        """The system of that name, awake, all others stopped; started when there is none, or one with another key."""
        if self.is_new(name, key):
            self.drop(name)
        self.freeze(but=name)
        if name in self._systems:
            self._systems[name].thaw()
        else:
            self._systems[name], self._keys[name] = start(), key
        return self._systems[name]

    def freeze(self, *, but: str = "") -> None:
        """Stop all others."""
        for name, system in self._systems.items():
            if name != but:
                system.freeze()

    def drop(self, name: str) -> None:
        """End one."""
        system = self._systems.pop(name, None)
        if system is not None:
            system.close()

    def close(self) -> None:
        """End all."""
        for name in list(self._systems):
            self.drop(name)


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _launch(pipe: Connection, function: str, *arguments: object) -> None:
    """The first line of a worker's process. By name: only there is torch imported."""
    os.environ["TQDM_DISABLE"] = "1"  # the package's progress bars are not ours
    getattr(importlib.import_module("scripts.bench.worker"), function)(pipe, *arguments)


def _seeded(utterance: Utterance, streamed: bool) -> dict[str, object]:
    return {"seed": utterance.seed, "stream": streamed}


def _steps(utterance: Utterance, streamed: bool) -> dict[str, object]:
    return {"steps": utterance.steps}


def _folder() -> Path:
    """Short: Ray puts sockets below it, and a socket's path may have 107 characters."""
    return Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])
