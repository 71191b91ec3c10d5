"""256 file descriptors, and then none: what starts processes and opens files says so and goes on afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.recordings import SAID, spoken, written

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]

# A process of its own: its limit is for good. On the event loop that replicas run on.
SCRIPT = """
import asyncio, os, resource, sys
from pathlib import Path

import uvloop

from pipeline.errors import AtCapacity, EngineDead, SynthesisError
from pipeline.text.isolation.frontend import IsolatedFrontend
from pipeline.types import SynthesisRequest
from serve.voices.voice_maker import UploadReader

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
recording = Path(sys.argv[1]).read_bytes()


def take_all():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return held


async def main():
    front = IsolatedFrontend(Path(sys.argv[2]), max_prompt=192, max_steps=500)
    reader = UploadReader()
    request = SynthesisRequest("r", "Hello there.", "default", timeout_s=60)
    held = take_all()
    for asking, kind in ((lambda: front.read(request), EngineDead), (lambda: reader.read(recording), AtCapacity)):
        for _ in range(2):
            try:
                await asyncio.wait_for(asking(), 60)
                raise SystemExit("it needs no descriptor?")
            except SynthesisError as error:
                assert isinstance(error, kind), repr(error)
    for number in held:
        os.close(number)
    for _ in range(40):  # nothing was left open by those that failed
        await front.read(request)
    for _ in range(3):
        await reader.read(recording)
    assert len(os.listdir("/proc/self/fd")) < 60
    print("held", flush=True)


uvloop.run(main())
os._exit(0)
"""


def test_without_a_free_descriptor_a_sentence_comes_and_later_everything_goes_on(tmp_path: Path, taught_root: Path):
    recording = tmp_path / "me.wav"
    recording.write_bytes(written(*spoken(SAID, tmp_path)))
    command = [sys.executable, "-c", SCRIPT, str(recording), str(taught_root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    assert done.stdout == "held\n", done.stderr
