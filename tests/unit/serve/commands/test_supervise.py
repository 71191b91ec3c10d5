"""The supervisor, over programs that bear the names of Ray's: what it notices, and that it always ends all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve.commands.launch.processes import members
from serve.commands.launch.supervise import Restarts
from serve.config.app_config import PROJECT
from tests.support.signals import as_in_a_terminal

pytestmark = pytest.mark.slow

# `serve run` as far as the supervisor sees it: two children, and a deaf ear where that is asked for.
COMMAND = """
import os, signal, subprocess, sys, time
folder, manner = sys.argv[1:]
if manner == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [subprocess.Popen([f"{folder}/{name}", "600"]) for name in ("gcs_server", "raylet")]
print("command", os.getpid(), *[child.pid for child in children], flush=True)
try:
    time.sleep(2 if manner == "short" else 600)
except KeyboardInterrupt:
    for child in children:
        child.kill()
    print("interrupted", flush=True)
    sys.exit(0)
sys.exit(3)
"""
SUPERVISOR = """
import os, sys
from serve.commands.launch import supervise
from serve.commands.launch.supervise import ServiceDied, Service, Signals, StopRequested
supervise.LAST_STEPS_S = supervise.TERM_PATIENCE_S = 1.0
signals = Signals()
service = Service([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], os.environ, signals)
try:
    service.watch(lambda: len(service._vital) == 2)
    print("watching", flush=True)
    service.watch(lambda: print("look", flush=True))
except StopRequested as asked:
    print("asked", asked, flush=True)
    print("in time", service.interrupt(600.0), flush=True)
except ServiceDied as error:
    print("died:", error, flush=True)
finally:
    service.end()
    print("left", len(service.processes()), flush=True)
"""


def as_in_the_background() -> None:
    as_in_a_terminal()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Supervised:
    """A supervisor in a process of its own, started as a shell starts a background command: SIGINT is ignored.

    SIGHUP is not, whatever the tests themselves have inherited (`nohup make test`).
    """

    def __init__(self, folder: Path, manner: str) -> None:
        for name in ("gcs_server", "raylet"):
            (folder / name).symlink_to("/bin/sleep")
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", SUPERVISOR, COMMAND, str(folder), manner],
            env=os.environ | {"PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=as_in_the_background,
        )
        _, *pids = self.until("command").split()
        self.session, self.gcs, self.raylet = map(int, pids)
        self.until("watching")

    def until(self, word: str) -> str:
        """The first line that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.strip()
        raise AssertionError(f"it ended without {word!r}")

    def end(self) -> None:
        assert self.until("left") == "left 0"
        assert self.process.wait(timeout=120) == 0
        assert members(self.session) == []


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_cluster_without_its_raylet_or_gcs_is_dead(tmp_path: Path, name: str):
    supervised = Supervised(tmp_path, "long")
    os.kill(supervised.raylet if name == "raylet" else supervised.gcs, signal.SIGKILL)
    assert supervised.until("died") == f"died: Ray's {name} ended"
    supervised.end()


def test_a_command_that_ends_by_itself_leaves_nothing(tmp_path: Path):
    supervised = Supervised(tmp_path, "short")
    assert supervised.until("died") == "died: `serve run` ended with exit code 3"
    supervised.end()


def test_stopped_processes_are_no_dead_ones(tmp_path: Path):
    """A debugger, a benchmark's turn, a machine that sleeps."""
    supervised = Supervised(tmp_path, "long")
    for pid in (supervised.gcs, supervised.raylet):
        os.kill(pid, signal.SIGSTOP)
    for _ in range(8):  # none of the supervisor's looks may end anything
        supervised.until("look")
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.until("asked") == "asked SIGTERM"
    supervised.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_is_interrupted_though_the_supervisor_was_started_deaf_to_it(tmp_path: Path, number: signal.Signals):
    supervised = Supervised(tmp_path, "long")
    supervised.process.send_signal(number)
    assert supervised.until("asked") == f"asked {number.name}"
    assert supervised.until("interrupted")
    assert supervised.until("in time") == "in time True"
    supervised.end()


def test_a_second_signal_ends_what_does_not_heed_the_first(tmp_path: Path):
    supervised = Supervised(tmp_path, "deaf")
    for number in (signal.SIGTERM, signal.SIGINT):  # at once: `make` passes on what the whole group has received
        supervised.process.send_signal(number)
    supervised.until("asked")
    time.sleep(2.0)
    assert supervised.process.poll() is None, "two at once are one"
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.until("in time") == "in time False"
    supervised.end()


def test_a_command_that_hangs_in_a_dead_cluster_is_not_waited_for(tmp_path: Path):
    supervised = Supervised(tmp_path, "deaf")
    supervised.process.send_signal(signal.SIGTERM)
    supervised.until("asked")
    os.kill(supervised.raylet, signal.SIGKILL)
    assert supervised.until("in time") == "in time False"
    supervised.end()


def test_a_service_that_dies_again_and_again_is_not_started_for_ever():
    now = 0.0
    again = Restarts(lambda: now)
    assert all(again.may() for _ in range(Restarts.MOST))
    now = Restarts.WINDOW_S - 1.0
    assert not again.may()
    now = Restarts.WINDOW_S
    assert again.may(), "the first of them is long ago"
