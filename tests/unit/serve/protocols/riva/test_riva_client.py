"""NVIDIA's client, unmodified, in a virtual environment of its own: all three calls, with the demo voice."""

import json
import re
import subprocess

import pytest

from tests.support.demo_voice import demo_library, demo_speaker
from tests.support.fakes import make_services
from tests.support.foreign import RIVA, RIVA_SCENARIOS, python_of_clients
from tests.support.riva_server import riva_serving

EXPECTED = {
    "first_lines": True,
    "whole": True,
    "words": ["Hello", "there"],
    "streamed_as_whole": True,
    "several": True,
    "voices": True,
    "dictionary": True,
    "refused": ["INVALID_ARGUMENT", "voice_not_found"],
}


@pytest.mark.nightly
def test_all_three_calls_of_the_client():
    library = demo_library()
    with demo_speaker(library=library) as speaker, riva_serving(make_services(speaker, voice_id=library.canonical)) as address:
        command = [python_of_clients(RIVA), str(RIVA_SCENARIOS), address]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED


def test_the_client_is_pinned():
    lines = [line for line in RIVA.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z-]+==[0-9.]+", line) for line in lines)
    assert any(line.startswith("nvidia-riva-client==") for line in lines)
