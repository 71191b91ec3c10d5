"""`make serve` while somebody listens: whatever process is killed, every sample is heard, at most after a pause."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.launch.processes import Process
from serve.config.app_config import PROJECT
from tests.support.recovery import recovered
from tests.support.started import START_TIMEOUT_S, Started, started
from tests.support.waiting import is_ready, wait_until

pytestmark = pytest.mark.nightly

TEXT = " ".join(f"Five one one, two five five, and {number} more." for number in range(8))
HEARD_BYTES = 48_000  # a second
ITS_OWN = re.compile(r"/\S*/|\d+| --.*")  # folders, numbers, options
PAUSE = re.compile(r"going on after ([\d.]+) s")


def say(service: Started) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "scripts.cli", "say", "--live", TEXT, "--url", service.url, "-o", "-", "--seed", "5"]
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kind(process: Process, home: Path) -> str:
    """What a process is, whichever start it belongs to."""
    return ITS_OWN.sub("", process.command().replace(str(home), ""))[:72].strip()


@pytest.mark.timeout(3600)
def test_whatever_process_is_killed_a_listener_hears_the_whole(home: Path, folder: Path, capsys):
    with started("--restart", home=home, folder=folder) as service:
        service.wait_until_ready()
        twin, complaints = say(service).communicate(timeout=300)
        assert len(twin) > 10 * HEARD_BYTES, complaints
        silent_s = []
        for name in sorted({kind(each, home) for each in service.processes()}):
            wait_until(lambda: is_ready(service.url), START_TIMEOUT_S)
            found = next((each for each in service.processes() if kind(each, home) == name), None)
            if found is None:
                continue  # it ended with one that was killed before, and is not needed
            saying = say(service)
            heard = saying.stdout.read(HEARD_BYTES)
            os.kill(found.pid, signal.SIGKILL)
            died = time.monotonic()
            heard += saying.stdout.read()
            assert saying.wait(60) == 0, f"{name}: {saying.stderr.read().decode()}\n{service.said()[-4000:]}"
            assert heard == twin, name
            silent_s.append(sum(map(float, PAUSE.findall(saying.stderr.read().decode()))))
            with capsys.disabled():
                print(f"\n  {name}: a pause of {silent_s[-1]:.1f} s, all heard after {time.monotonic() - died:.1f} s")
        assert service.process.poll() is None
        assert "starting the service again" in service.said()
        with capsys.disabled():
            recovered("N-1", max(silent_s))
