"""A cluster that died, a supervisor that died: what was started ends with an exit code, and the next start comes up."""

import os
import signal
import time
from pathlib import Path

import pytest
import requests

from serve.commands.launch.processes import members
from tests.support.ports import free_port
from tests.support.started import Started, nothing_is_left, started

pytestmark = pytest.mark.nightly


def speaks(service: Started) -> bool:
    body = {"input": "Five one one.", "seed": 1, "cache": "no-store"}
    return requests.post(f"{service.url}/v1/audio/speech", json=body, timeout=60).status_code == 200


def code_after_killing(title: str, service: Started, capsys: pytest.CaptureFixture[str]) -> int:
    """What serve.commands.launch.start ends with by itself."""
    os.kill(service.one(title).pid, signal.SIGKILL)
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
        assert "Ray's raylet ended" in service.said()
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
            assert "ended what an earlier start has left running: " in service.said()
            assert "haproxy" in service.said().splitlines()[0]
            assert not members(session)
            assert speaks(service)
            session = service.serve_run().session
            assert code_after_killing("gcs_server", service, capsys) == 1
            assert "Ray's gcs_server ended" in service.said()
            nothing_is_left(session, service.url)
