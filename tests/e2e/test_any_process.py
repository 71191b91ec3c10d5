"""`make serve` while somebody listens: whatever process is killed, every sample is heard, at most after a pause."""

import os
import re
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from serve.commands.launch.processes import Process
from tests.support.door_process import say_live
from tests.support.recovery import recovered
from tests.support.started import START_TIMEOUT_S, started
from tests.support.waiting import is_ready, wait_until

pytestmark = pytest.mark.nightly

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
        for name in sorted({kind(each, home) for each in service.processes()}):
            wait_until(lambda: is_ready(service.url), START_TIMEOUT_S)
            found = next((each for each in service.processes() if kind(each, home) == name), None)
            if found is None:
                continue  # it ended with one that was killed before, and is not needed
            saying = say_live(service.url, TEXT)
            heard = saying.stdout.read(HEARD_BYTES)
            os.kill(found.pid, signal.SIGKILL)
            times = [time.monotonic()]
            while piece := saying.stdout.read1():
                heard += piece
                times.append(time.monotonic())
            assert saying.wait(60) == 0, f"{name}: {saying.stderr.read().decode()}\n{service.said()[-4000:]}"
            assert heard == twin, name
            silent_s.append(max(later - earlier for earlier, later in pairwise(times)))
            with capsys.disabled():
                print(f"\n  {name}: a pause of {silent_s[-1]:.1f} s, all heard after {times[-1] - times[0]:.1f} s")
        assert service.process.poll() is None
        assert "starting the service again" in service.said()
        with capsys.disabled():
            recovered("N-1", max(silent_s))
