"""serve.commands.launch.start in a process of its own, and what tests need to look at and to end it."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import requests

from serve.commands.launch.processes import Process, end_session, members, processes, sessions_with
from serve.config.app_config import PROJECT
from tests.support.ports import free_port
from tests.support.signals import as_in_a_terminal
from tests.support.waiting import wait_until

START_TIMEOUT_S = 600.0  # half a minute where the machine is idle
STOP_TIMEOUT_S = 240.0
HAPROXY_PORTS = ("RAY_SERVE_HAPROXY_METRICS_PORT", "RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT")
FEW_FILES = 256
SERVICER = "serve.protocols.riva.protocol:add_RivaSpeechSynthesisServicer_to_server"
PATIENT = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
"""variables of a service with a port for gRPC, which is ready later"""


@dataclass
class Started:
    """A service of serve.commands.launch.start."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    config: Path
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def output(self) -> str:
        """What it has printed, then its log."""
        service_log = Path(self.environment["CHATTTS_HOME"]) / f"logs/{self.port}.log"
        return self.log.read_text() + (service_log.read_text() if service_log.exists() else "")

    def wait_for(self, text: str) -> None:
        """Until it was printed; the process lives all the while."""
        began = time.monotonic()
        while text not in self.output():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() - began < START_TIMEOUT_S, self.output()
            time.sleep(0.2)

    def wait_until_ready(self) -> None:
        self.wait_for("Stop:  Ctrl-C")

    def exit_code(self) -> int:
        return self.process.wait(timeout=STOP_TIMEOUT_S)

    def run_folder(self) -> Path:
        (line,) = [line for line in self.output().splitlines() if line.startswith("  Ray:")]
        return Path(line.split("'")[1]).parent

    def serve_run(self) -> Process:
        """The command that everything else descends from."""
        (process,) = [process for process in processes() if process.parent == self.process.pid]
        return process

    def processes(self) -> list[Process]:
        """Of the session in which everything runs but serve.commands.launch.start itself."""
        return members(self.serve_run().session)

    def process_titled(self, title: str) -> Process:
        """The process with that in its title."""
        (process,) = [process for process in self.processes() if title in process.command()]
        return process


@contextlib.contextmanager
def started(
    *arguments: str,
    home: Path,
    folder: Path,
    port: int | None = None,
    changes: Mapping[str, str] = {},
    program: tuple[str, ...] = ("-m", "serve.commands.launch.start"),
    shipped: str = "dev",
    where: Path = PROJECT,
    prefix: Path = Path(sys.prefix),
    **variables: str,
) -> Iterator[Started]:
    """Run serve.commands.launch.start as a shell runs a background command: with SIGINT ignored, and few files allowed.

    Its Python is in the home, as it is in that of who has checked this out in a folder with a space.

    Args:
        home: CHATTTS_HOME.
        folder: for configuration, log and Ray; short, see `short_folder`.
        port: where to listen; a free one where none is given.
        changes: lines of the shipped configuration, and what stands in their place.
        program: what Python runs.
        shipped: the name of that configuration.
        where: the folder it runs in.
        prefix: of the Python that runs it.
        variables: of the environment.
    """
    folder.mkdir(exist_ok=True)
    port = port or free_port()
    config, log = folder / f"{port}.yaml", folder / f"{port}.log"
    source = f"configs/{shipped}.yaml"
    text = (PROJECT / source).read_text()
    for right, ours in {"port: 8000": f"port: {port}", f"source: {source}": f"source: {config}", **changes}.items():
        assert right in text
        text = text.replace(right, ours)
    config.write_text(text)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_AUTH", "RAY_ADDRESS"))}
    environment = inherited | {"CHATTTS_HOME": str(home), "RAY_TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(PROJECT)} | {name: str(free_port()) for name in HAPROXY_PORTS} | variables
    with contextlib.suppress(FileExistsError):
        (home / "venv").symlink_to(prefix)
    python = home / "venv" / Path(sys.executable).relative_to(sys.prefix)
    with log.open("w") as output:
        process = subprocess.Popen(
            [python, *program, str(config), *arguments],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_as_a_background_command,
        )
    service = Started(port, process, log, config, environment)
    try:
        yield service
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for session in sessions_with(f"RAY_TMPDIR={folder}") - {os.getsid(0)}:
            end_session(session, 0.0)


def with_listeners(grpc: int, wyoming: int, limits: str = "first_audio_timeout_s: 300") -> dict[str, str]:
    """The changes of a service that listens on these ports too."""
    return {
        "logging_config: {": f"grpc_options: {{port: {grpc}, grpc_servicer_functions: ['{SERVICER}']}}\nlogging_config: {{",
        "limits: {": f"wyoming: {{port: {wyoming}}}\n      limits: {{{limits}, ",
    }


def _as_a_background_command() -> None:
    as_in_a_terminal()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Ray puts sockets below it, and a socket's path may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def nothing_is_left(session: int, url: str) -> None:
    """No process of a session, nobody listens for it."""
    wait_until(lambda: not members(session), STOP_TIMEOUT_S)
    with contextlib.suppress(requests.ConnectionError):
        raise AssertionError(f"somebody answers: {requests.get(url, timeout=5).status_code}")
