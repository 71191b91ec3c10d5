"""Clients of other projects, unmodified: Deepgram's package, LiveKit's plugins, Pipecat's services; what they said is repeated.

CHATTTS_RECORD=1 writes down the transcripts of the nightly run anew.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.foreign import REQUIREMENTS, SCENARIOS, python_of_clients
from tests.support.transcripts import FOLDER, Recorder, Trio, saved, say_again, trio

SECOND = 48_000  # bytes of 16-bit samples at 24 kHz; the server speaks one second of every part
FLUSHED = ["default", 2 * SECOND, "Flushed", 0, True, "Cleared", 1, SECOND, "Flushed", 2, 1000]
TALKED = {"whole": True, "audio": 2 * SECOND, "began": True, "after": True, "more": SECOND, "errors": []}
REFUSED = {"audio": 0, "says_so": True}
STATUS_ERRORS = ["APIStatusError", "APIStatusError"]

EXPECTED: dict[str, dict[str, Any]] = {
    "deepgram_http": {"audio": SECOND},
    "deepgram_http_refused": {
        "voice": [400, "VOICE_NOT_FOUND"],
        "key": [401, "INVALID_AUTH"],
        "full": [429, "TOO_MANY_REQUESTS"],
        "with_key": True,
    },
    "deepgram_socket": {"heard": FLUSHED},
    "deepgram_socket_refused": {
        "voice": ["Error", "VOICE_NOT_FOUND", 1008],
        "key": ["Error", "INVALID_AUTH", 1008],
        "full": ["Error", "TOO_MANY_REQUESTS", 1013],
    },
    "livekit_elevenlabs_http": {"seconds": 1.01},  # it appends 10 ms of its own
    "livekit_elevenlabs_socket": {"seconds": 2.0, "five": 5 * [2.0], "interrupted": True, "after": 2.0},
    "livekit_elevenlabs_refused": {"voice": STATUS_ERRORS, "key": STATUS_ERRORS, "full": STATUS_ERRORS},
    "livekit_openai_http": {
        "gpt-4o-mini-tts": [1.0, 58, True],  # from server-sent events, with the characters and steps of `usage`
        "tts-1": [1.0, 0, False],
        "voice": ["APIStatusError", 400],
        "full": ["APIStatusError", 429],
    },
    "pipecat_elevenlabs_socket": TALKED,
    "pipecat_elevenlabs_http": TALKED,
    "pipecat_deepgram_socket": TALKED,
    "pipecat_refused": {
        f"{service} {what}": REFUSED for service in ("elevenlabs", "deepgram") for what in ("voice", "key", "full")
    },
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    python, recorder = python_of_clients(), Recorder()
    results = {}
    with trio(tmp_path_factory.mktemp("trio"), recorder) as servers:
        where = servers.addresses
        command = [python, str(SCENARIOS), where["open"], where["guarded"], servers.key, where["full"]]
        quiet = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LOGURU_LEVEL": "ERROR"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet) as running:
            assert running.stdout is not None
            for line in running.stdout:
                result = json.loads(line)
                scenario = result.pop("scenario")
                results[scenario] = result
                if os.environ.get("CHATTTS_RECORD") == "1":
                    saved(scenario, recorder.take())
    return results


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", EXPECTED)
def test_clients_of_other_projects(found: dict[str, Any], scenario: str):
    assert found[scenario] == EXPECTED[scenario]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with trio(tmp_path_factory.mktemp("trio")) as started:
        yield started


def test_every_scenario_has_a_transcript():
    assert {path.stem for path in FOLDER.iterdir()} == set(EXPECTED)
    assert not re.findall(r"ck-(?!wrong)\w", "".join(path.read_text() for path in FOLDER.iterdir())), "a key"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_what_they_said_is_answered_as_it_was(servers: Trio, path: Path):
    talks = json.loads(path.read_text())
    assert talks
    for talk in talks:
        say_again(talk, servers)


def test_the_clients_are_pinned():
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    pins = {one.name: str(one.specifier) for one in map(Requirement, lines)}
    assert list(pins) == sorted(pins)
    assert all(pin.startswith("==") for pin in pins.values())
    asked_for = {"deepgram-sdk", "livekit-agents", "livekit-plugins-elevenlabs", "livekit-plugins-openai", "pipecat-ai"}
    assert asked_for <= set(pins)
