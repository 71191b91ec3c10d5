"""Clients of other projects, unmodified: Deepgram's package, LiveKit's plugins, Pipecat's services; what they said is repeated.

CHATTTS_RECORD=1 writes down the transcripts of the nightly run anew.
"""

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from pipeline.voices.catalogue import VoiceCatalogue
from serve.config.app_config import PROJECT
from tests.support.foreign import (
    CALLS,
    CALLS_TABLE,
    JAVASCRIPT,
    LOCKED,
    NODE,
    REQUIREMENTS,
    SCENARIOS,
    python_of_clients,
    run_javascript,
)
from tests.support.transcripts import FILE, Recorder, Servers, saved, say_again, started

SHIPPED = PROJECT / "configs/voices.yaml"
TRANSCRIPTS = json.loads(FILE.read_text())
SECOND = 48_000  # bytes of 16-bit samples at 24 kHz; the server speaks one second of every part
FLUSHED = ["voice-287", 2 * SECOND, "Flushed", 0, True, "Cleared", 1, SECOND, "Flushed", 2, 1000]
TALKED = {"whole": True, "audio": 2 * SECOND, "began": True, "after": True, "more": SECOND, "errors": []}
PAUSED = {"heard": [SECOND, SECOND], "errors": 0}
LIVEKIT_HTTP = {"seconds": 1.01}  # it appends 10 ms of its own
LIVEKIT_SOCKET = {"seconds": 2.0, "five": 5 * [2.0], "interrupted": True, "after": 2.0}
LIVEKIT_REFUSED = {  # over HTTP and over a socket; -1: a message on an open socket, which the plugin gives no status
    what: [["APIStatusError", status], ["APIStatusError", of_socket]]
    for what, status, of_socket in (("voice", 404, -1), ("key", 401, 401), ("full", 429, -1))
}

EXPECTED: dict[str, dict[str, Any]] = {
    "deepgram_http": {"audio": SECOND},
    "deepgram_http_refused": {
        "voice": [400, "VOICE_NOT_FOUND"],
        "key": [401, "INVALID_AUTH"],
        "full": [429, "TOO_MANY_REQUESTS"],
        "with_key": True,
    },
    "deepgram_granted": {"audio": SECOND, "expires_in": 60.0},
    "deepgram_socket": {"heard": FLUSHED},
    "deepgram_socket_refused": {
        "voice": ["Error", "VOICE_NOT_FOUND", 1008],
        "key": [401],
        "full": ["Error", "TOO_MANY_REQUESTS", 1013],
    },
    "deepgram_idle": {"first": "Metadata", "code": 1000},
    "elevenlabs_first_message": {
        "right stream-input": [2 * SECOND, [], 1000],
        "right multi-stream-input": [4 * SECOND, [], 1000],
        "wrong stream-input": [0, ["invalid_api_key"], 1008],
        "wrong multi-stream-input": [0, ["invalid_api_key"], 1008],
    },
    "livekit_elevenlabs_http": LIVEKIT_HTTP,
    "livekit_elevenlabs_socket": LIVEKIT_SOCKET,
    "livekit_elevenlabs_refused": LIVEKIT_REFUSED,
    "livekit_elevenlabs_idle": {"heard": [2.0, 2.0]},
    "livekit_dialogue_http": LIVEKIT_HTTP,
    "livekit_dialogue_socket": LIVEKIT_SOCKET,
    "livekit_dialogue_refused": LIVEKIT_REFUSED,
    "livekit_dialogue_idle": {"heard": [2.0, 2.0]},
    "livekit_openai_http": {
        "events": [1.0, 58, True],  # server-sent ones, with the characters and steps of `usage`
        "events of mp3": [1.03, 58, True],  # the plugin's own default
        "audio": [1.0, 0, False],
        "voice": ["APIStatusError", 400],
        "key": ["APIStatusError", 401],
        "full": ["APIStatusError", 429],
    },
    "pipecat_elevenlabs_socket": TALKED,
    "pipecat_elevenlabs_http": TALKED,
    "pipecat_elevenlabs_idle": PAUSED,
    "pipecat_dialogue_socket": TALKED,
    "pipecat_dialogue_idle": PAUSED,
    "pipecat_deepgram_socket": TALKED,
    "pipecat_deepgram_http": TALKED,
    "pipecat_deepgram_idle": PAUSED | {"errors": 1},  # it reports every close, and connects again
    "default_elevenlabs_of_livekit": {"socket": 2.22, "http": 1.12},  # the server's second is longer at 22,050 Hz
    "default_deepgram_of_livekit": {"socket": 2.0, "http": 1.01},
    "default_flux_of_livekit": {"socket": 2.0, "http": 1.01},
    "default_openai_of_livekit": {"http": 1.03},
    "default_elevenlabs_of_pipecat": TALKED,
    "default_elevenlabs_http_of_pipecat": TALKED,
    "default_dialogue_of_pipecat": TALKED,
    "default_deepgram_of_pipecat": TALKED,
    "default_deepgram_http_of_pipecat": TALKED,
    "default_flux_of_pipecat": TALKED,
    "default_openai_of_pipecat": TALKED,
    "default_deepgram_package": {
        "http": ["RIFF", "RIFF", True],
        "socket": ["Metadata", 2 * SECOND, "Flushed"],
        "flux": ["Connected", "SpeechStarted", "SpeechMetadata", "Flushed", "SessionMetadata"],
        "voices": True,
    },
    "pipecat_refused": {
        f"{service} {what}": {"audio": 0, "says_so": True}
        for service in ("elevenlabs", "dialogue", "deepgram", "elevenlabs http", "deepgram http")
        for what in ("voice", "key", "full")
    },
}


def is_recorded(scenario: str) -> bool:
    """False for what takes the time of a pause and for messages with a key or a token: test_conversation_socket.py,
    test_anteroom.py and test_single_use_tokens.py have these in short.
    """
    return not scenario.endswith(("_idle", "_first_message", "_granted"))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_clients_of_other_projects(tmp_path: Path):
    python, recorder = python_of_clients(), Recorder()
    found = {}
    with started(tmp_path, recorder) as servers:
        where = servers.addresses
        command = [python, str(SCENARIOS), where["open"], where["guarded"], servers.key, where["full"], where["brief"]]
        quiet = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LOGURU_LEVEL": "ERROR"}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet
        ) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            for line in running.stdout:
                result = json.loads(line)
                scenario = result.pop("scenario")
                found[scenario] = result
                talks = recorder.take()
                if os.environ.get("CHATTTS_RECORD") == "1" and is_recorded(scenario):
                    saved(scenario, talks)
                running.stdin.write("\n")
                running.stdin.flush()
    assert found == EXPECTED


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_english_voice_that_deepgrams_package_names_speaks():
    code = "from typing import get_args as of; from deepgram import types; print(*of(of(types.DeepgramModel)[0]))"
    names = subprocess.run([python_of_clients(), "-c", code], capture_output=True, text=True, check=True).stdout.split()
    english, voices = [name for name in names if name.endswith("-en")], VoiceCatalogue.load(SHIPPED, 16)
    assert len(english) > 80
    assert {voices.get(name).name for name in english} <= {info.name for info in voices.list()} - {"default"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with started(tmp_path_factory.mktemp("servers")) as them:
        yield them


def test_the_first_lines_name_what_their_clients_would_have_chosen():
    """And nothing that would hide that a default does not work: no voice of this service, no other format."""
    tree = ast.parse((SCENARIOS.parent / "defaults.py").read_text())
    (table,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "FIRST_LINES")
    first_lines = set(ast.literal_eval(table))
    chosen = ("voice", "voice_id", "model", "encoding", "output_format", "response_format", "container", "language")
    named = {
        word.value.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg in chosen and isinstance(word.value, ast.Constant)
    }
    assert named == first_lines
    assert not first_lines & {name for info in VoiceCatalogue.load(SHIPPED, 16).list() for name in (info.name, *info.aliases)}


def test_the_calls_of_documentations_name_nothing_of_this_service():
    text = CALLS_TABLE.read_text()
    names = {info.name for info in VoiceCatalogue.load(SHIPPED, 16).list()} - {"default"}  # a kind of voices at ElevenLabs
    assert not {name for name in (*names, "chattts", "seed:") if name in text}


def test_every_scenario_has_a_transcript():
    assert TRANSCRIPTS.keys() == {name for name in EXPECTED if is_recorded(name)}
    assert not re.findall(r"ck-(?!wrong)\w", FILE.read_text()), "a key"


@pytest.mark.parametrize("scenario", TRANSCRIPTS)
def test_what_they_said_is_answered_as_it_was(servers: Servers, scenario: str):
    assert TRANSCRIPTS[scenario]
    for talk in TRANSCRIPTS[scenario]:
        say_again(talk, servers)


@pytest.mark.parametrize("requirements", [REQUIREMENTS, CALLS], ids=lambda path: path.stem)
def test_the_clients_are_pinned(requirements: Path):
    text = requirements.read_text()
    pins = {one.name: str(one.specifier) for one in map(Requirement, re.findall(r"^[^#\n].*", text, re.MULTILINE))}
    assert list(pins) == sorted(pins)
    assert all(pin.startswith("==") for pin in pins.values())
    asked_for = re.search(r"Asked for: ([^.]*)\.\n", text.replace("\n# ", " "))
    assert asked_for is not None
    assert {re.sub(r"\[.*?\]", "", name) for name in re.split(r", (?![^\[]*\])", asked_for[1])} <= set(pins)


# JavaScript clients of other projects, unmodified: OpenAI's, ElevenLabs' and Deepgram's packages, and Vercel's AI SDK.


PRINTED: dict[str, dict[str, Any]] = json.loads((PROJECT / "tests/data/javascript_clients.json").read_text())
"""scenario -> what the client printed; the server speaks one second of every text, 48,000 bytes"""


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_javascript_clients_of_other_projects(tmp_path: Path):
    with started(tmp_path) as servers:
        where = servers.addresses
        done = run_javascript(
            (JAVASCRIPT / "scenarios.mjs").read_text(), where["open"], where["guarded"], servers.key, where["full"]
        )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {entry.pop("scenario"): entry for entry in results} == PRINTED, done.stderr[-2000:]


def test_the_javascript_clients_are_locked_by_their_hashes():
    request, lock = (json.loads((JAVASCRIPT / name).read_text()) for name in LOCKED)
    assert lock["packages"].pop("")["dependencies"] == request["dependencies"]
    sdk = {f"@ai-sdk/{vendor}" for vendor in ("deepgram", "elevenlabs", "openai")}
    assert set(request["dependencies"]) == sdk | {"@deepgram/sdk", "@elevenlabs/elevenlabs-js", "ai", "openai"}
    assert all(entry["integrity"].startswith("sha512-") for entry in lock["packages"].values())
    assert not any("resolved" in entry for entry in lock["packages"].values()), "whichever registry npm is told to use"
    assert NODE.read_text().count("--hash=sha256:") == 3
