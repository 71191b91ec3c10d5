"""A run's folder: private, told from a dead one by its lock, and the way back to what a dead one left running."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve.commands.launch.processes import members
from serve.commands.launch.runs import Run, end_leftovers, running
from serve.config.app_config import PROJECT

# A supervisor with a service: a child in a session of its own, with the run's variable. Both stay.
SUPERVISOR = """
import os, subprocess, sys, time
from pathlib import Path
from serve.commands.launch.runs import Run
run = Run.begin(Path(sys.argv[1]))
name, _, value = run.variable.partition("=")
child = subprocess.Popen(["sleep", "600"], env=os.environ | {name: value}, start_new_session=True)
run.note({"RAY_ADDRESS": "127.0.0.1:1"})
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path: Path):
    """A supervisor and its service's session."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    session = int(process.stdout.readline())
    yield process, session
    process.kill()
    process.wait()
    end_leftovers(tmp_path)


def test_only_its_owner_can_read_it(tmp_path: Path):
    before = os.umask(0)
    try:
        run = Run.begin(tmp_path / "a home")
    finally:
        os.umask(before)
    run.note({"RAY_AUTH_TOKEN_PATH": str(run.token)})
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.folder.iterdir()}
    assert modes == {"token": 0o600, "lock": 0o600, "env": 0o600, "sockets": 0o700}
    assert run.folder.stat().st_mode & 0o777 == run.folder.parent.stat().st_mode & 0o777 == 0o700
    sockets = run.sockets
    assert len(str(sockets)) < 30, "however long the path of the home is"
    run.end()
    assert not run.folder.exists()
    assert not sockets.exists()


def test_each_run_has_a_token_of_its_own(tmp_path: Path):
    runs = [Run.begin(tmp_path) for _ in range(2)]
    tokens = {run.token.read_text() for run in runs}
    assert len(tokens) == 2
    assert {len(bytes.fromhex(token)) for token in tokens} == {32}
    for run in runs:
        run.end()


def test_what_is_noted_can_be_read_by_a_shell_and_by_scripts(tmp_path: Path):
    run = Run.begin(tmp_path / "it's a home")
    noted = {"RAY_AUTH_TOKEN_PATH": str(run.token), "RAY_ADDRESS": "127.0.0.1:6379"}
    run.note(noted)
    done = subprocess.run(["sh", "-c", f'. "{run.access}"; cat "$RAY_AUTH_TOKEN_PATH"'], capture_output=True, text=True)
    assert done.stdout == run.token.read_text()
    assert running(tmp_path / "it's a home") == [noted]
    run.end()
    assert running(tmp_path / "it's a home") == []


def test_a_service_whose_supervisor_lives_is_left_alone(tmp_path: Path, supervisor):
    _, session = supervisor
    assert end_leftovers(tmp_path) == []
    assert [found.name for found in members(session)] == ["sleep"]
    assert running(tmp_path) == [{"RAY_ADDRESS": "127.0.0.1:1"}]


def test_a_service_whose_supervisor_was_killed_is_ended(tmp_path: Path, supervisor):
    process, session = supervisor
    process.kill()
    process.wait()
    assert members(session), "nobody told it to end"
    assert running(tmp_path) == []
    (link,) = (tmp_path / "runs").glob("*/sockets")
    sockets = link.readlink()
    assert end_leftovers(tmp_path) == ["sleep"]
    assert not sockets.exists()
    assert members(session) == []
    assert list((tmp_path / "runs").iterdir()) == []
