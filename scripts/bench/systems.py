"""Systems: what is compared, each in its own processes, of which only those of the measured system run.

In:    the name of a system (scripts/bench/names.py), its settings
Out:   Timelines
Owns:  the processes, their ports and folders; stops every one of them at the end
Never: torch, Ray: this process only sends requests

A system that is not measured is stopped by SIGSTOP, all of its Ray included, and continued when its turn comes. It keeps its
memory and takes no processor time from the others.
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

import psutil
import requests
import yaml

from pipeline.checkpoint.locate import resolve
from pipeline.paths import cache_home
from scripts.bench.client import Endpoint, drive, health, http_speaker
from scripts.bench.names import IN_PROCESS, SERVICE, STATIC, UPSTREAM
from scripts.bench.processes import family
from scripts.bench.record import ROOT
from scripts.bench.settings import Settings, document
from scripts.bench.timeline import Timeline
from scripts.bench.workload import Load, Utterance

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
THAW_TIMEOUT_S = 60.0
POLL_S = 0.05
# Ray gives its workers niceness 15: other work on the machine would slow them, and not the systems without Ray.
ENVIRONMENT = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class System:
    """A system that synthesises speech, in processes of its own."""

    name: str

    def run(self, load: Load) -> list[Timeline]:
        """Runs a load against the system, to its end."""
        raise NotImplementedError

    def processes(self) -> list[psutil.Process]:
        """Returns all its processes."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Stops all its processes; they take no more processor time."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        """Continues all its processes."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def close(self) -> None:
        """Ends all its processes."""
        raise NotImplementedError


class WorkerProcess(System):
    """A system without HTTP: one process that takes commands through a pipe (scripts/bench/worker.py)."""

    def __init__(self, name: str, function: str, *arguments: object) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_launch, args=(theirs, function, *arguments), daemon=True, name=name)
        self._process.start()
        theirs.close()
        self._answer()

    def call(self, command: str, *arguments: object) -> Any:
        """Returns what the worker answers to a command.

        Raises:
            RuntimeError: the command failed, or the process has ended.
        """
        self._pipe.send((command, arguments))
        return self._answer()

    def run(self, load: Load) -> list[Timeline]:
        timelines: list[Timeline] = self.call("load", load)
        return timelines

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._process.pid)] if self._process.is_alive() else []

    def close(self) -> None:
        self.thaw()
        self._pipe.close()  # the worker ends itself
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"the process {self.name} has ended with {self._process.exitcode}") from None
        if kind == "failed":
            raise RuntimeError(f"{self.name} failed:\n{value}")
        return value


class Remote(System):
    """A speech server that was started elsewhere."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self.endpoint = endpoint

    def run(self, load: Load) -> list[Timeline]:
        return asyncio.run(self._run(load))

    async def _run(self, load: Load) -> list[Timeline]:
        async with http_speaker(self.endpoint) as speak:
            return await drive(load, speak)

    def processes(self) -> list[psutil.Process]:
        return []

    def close(self) -> None:
        """Leaves the server running."""


class Served(Remote):
    """A command that starts Ray and listens, in a folder of its own. The folder identifies its processes."""

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

    def processes(self) -> list[psutil.Process]:
        return family(f"RAY_TMPDIR={self._folder}", self._process.pid)

    def close(self) -> None:
        super().thaw()
        processes = self.processes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_TIMEOUT_S)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, whoever has its number by now
                process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def health(self) -> dict[str, Any]:
        """Returns the body of GET /health."""
        return health(self.endpoint.url)

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


def start_upstream(checkpoint: str, threads: int, device: str) -> WorkerProcess:
    """Starts the ChatTTS package."""
    return WorkerProcess(UPSTREAM, "run_upstream", resolve(checkpoint, cache_home()), threads, device)


def start_in_process(settings: Settings) -> WorkerProcess:
    """Starts this service's pipeline in one process, without Serve."""
    return WorkerProcess(IN_PROCESS, "run_pipeline", document(settings, 0, None)["applications"][0]["args"]["pipeline"])


def start_static(checkpoint: str, threads: int, device: str) -> Served:
    """Starts the ChatTTS package's batch call behind Serve."""
    folder, port = _folder(), free_port()
    command = [sys.executable, "-m", "scripts.bench.static_batch", str(resolve(checkpoint, cache_home()))]
    command += ["--port", str(port), "--threads", str(threads), "--device", device, "--temp-dir", str(folder)]
    endpoint = Endpoint(f"http://127.0.0.1:{port}", extra=_steps)
    # Without a token, so that none is written into the user's home, and reachable on 127.0.0.1 alone.
    alone = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return Served(STATIC, endpoint, command, folder, **alone)


def copy_bandwidth(device: str) -> float:
    """Returns the bytes per second this device copies, measured in a process that ends: its threads must not stay."""
    command = [sys.executable, "-m", "scripts.bench.memory_bandwidth", device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def set_batch_size(static: Served, size: int) -> None:
    """Sets how many requests the static batches gather."""
    requests.put(f"{static.endpoint.url}/batch_size", json=size, timeout=10).raise_for_status()


def start_service(settings: Settings) -> Served:
    """Starts this service."""
    resolve(settings.checkpoint, cache_home())  # generated now if need be: starting is timed
    folder, port = _folder(), free_port()
    source = folder / "config.yaml"
    source.write_text(yaml.safe_dump(document(settings, port, source)))
    command = [
        sys.executable,
        "-m",
        "serve.commands.launch.start",
        str(source),
        *(["--plain"] if settings.path == "plain" else []),
    ]
    return Served(SERVICE, Endpoint(f"http://127.0.0.1:{port}", extra=_seeded), command, folder)


class SystemPool:
    """The systems of a run. One at a time is awake; the others are stopped."""

    def __init__(self) -> None:
        self._systems: dict[str, System] = {}
        self._keys: dict[str, object] = {}

    def is_new(self, name: str, key: object) -> bool:
        """True if `take` would have to start the system."""
        return name not in self._systems or self._keys[name] != key

    def take(self, name: str, key: object, start: Callable[[], System]) -> System:
        """Returns the system of that name, awake, and stops all others; starts it if there is none, or one with another key."""
        if self.is_new(name, key):
            self.drop(name)
        self.freeze(but=name)
        if name in self._systems:
            self._systems[name].thaw()
        else:
            self._systems[name], self._keys[name] = start(), key
        return self._systems[name]

    def freeze(self, *, but: str = "") -> None:
        """Stops all systems but one."""
        for name, system in self._systems.items():
            if name != but:
                system.freeze()

    def drop(self, name: str) -> None:
        """Ends one system."""
        system = self._systems.pop(name, None)
        if system is not None:
            system.close()

    def close(self) -> None:
        """Ends all systems."""
        for name in list(self._systems):
            self.drop(name)


def free_port() -> int:
    """Returns a port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _launch(pipe: Connection, function: str, *arguments: object) -> None:
    """Runs a function of the worker in the new process. It is found by name, so that torch is imported only there."""
    os.environ["TQDM_DISABLE"] = "1"  # the package's progress bars are not ours
    getattr(importlib.import_module("scripts.bench.worker"), function)(pipe, *arguments)


def _seeded(utterance: Utterance, streamed: bool) -> dict[str, object]:
    lane = {"priority": utterance.lane} if utterance.lane else {}
    return {"seed": utterance.seed, "stream": streamed, "latency": utterance.latency, **lane}


def _steps(utterance: Utterance, streamed: bool) -> dict[str, object]:
    return {"steps": utterance.steps}


def _folder() -> Path:
    """Creates a folder with a short path: Ray puts sockets below it, and a socket's path may have 107 characters."""
    return Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])
