"""Wyoming's listener and Riva's gRPC of a whole service, through HAProxy and through Serve's own proxy."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.foreign import RIVA, RIVA_SCENARIOS, python_of_clients
from tests.support.home_assistant import home_assistant_reads, home_assistant_streams
from tests.support.ports import free_port
from tests.support.riva_server import Caller, refusal
from tests.support.service import is_idle
from tests.support.started import PATIENT, Started, started, with_listeners
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

TEXT = "Hello there."
LONG = "So this is the first sentence. And here is the second one. " * 60
ASKED: dict[str, Any] = {"sample_rate_hz": 24_000, "custom_configuration": {"seed": "5"}}


@dataclass
class Listeners:
    """A service and its ports."""

    of: Started
    grpc: int
    wyoming: int

    @property
    def riva(self) -> Caller:
        return Caller(f"127.0.0.1:{self.grpc}")

    def health(self) -> dict[str, Any]:
        report: dict[str, Any] = requests.get(f"{self.of.url}/health", timeout=60).json()
        return report

    def speaks(self) -> bytes:
        body = {"input": TEXT, "response_format": "pcm", "seed": 5}
        return requests.post(f"{self.of.url}/v1/audio/speech", json=body, timeout=120).content


@pytest.fixture(scope="module", params=[(), ("--plain",)], ids=["through HAProxy", "through Serve's own proxy"])
def listeners(home: Path, folder: Path, request: pytest.FixtureRequest) -> Iterator[Listeners]:
    grpc, wyoming = free_port(), free_port()
    with started(*request.param, home=home, folder=folder, changes=with_listeners(grpc, wyoming), **PATIENT) as running:
        running.wait_until_ready()
        yield Listeners(running, grpc, wyoming)


def test_riva_speaks_the_bytes_of_http(listeners: Listeners):
    expected = listeners.speaks()
    assert listeners.riva.whole(text=TEXT, **ASKED, timeout=120)[0].audio == expected
    assert b"".join(message.audio for message in listeners.riva.stream({"text": TEXT, **ASKED}, timeout=120)) == expected
    assert b"".join(message.audio for message in listeners.riva.older(text=TEXT, **ASKED, timeout=120)) == expected
    assert "alloy" not in [model.parameters["voice_name"] for model in listeners.riva.config().model_config], "an alias"


def test_errors_of_riva_have_a_status_and_details(listeners: Listeners):
    assert refusal(lambda: listeners.riva.whole(text=TEXT, voice_name="nobody")) == ("INVALID_ARGUMENT", "voice_not_found")
    assert refusal(lambda: listeners.riva.stream({"text": ""})) == ("INVALID_ARGUMENT", "out_of_range")


@pytest.mark.parametrize("leaves", ["cancels", "deadline"])
def test_a_cancelled_call_frees_its_slot(listeners: Listeners, leaves: str):
    uncached = Caller(f"127.0.0.1:{listeners.grpc}", **{"cache-control": "no-store"})
    replies = uncached.stream({"text": LONG, **ASKED}, timeout=600 if leaves == "cancels" else 3)
    if leaves == "cancels":
        next(replies)
        replies.cancel()
    else:
        assert refusal(lambda: replies)[0] == "DEADLINE_EXCEEDED"
    wait_until(lambda: is_idle(listeners.health()), 10.0)


def test_nvidias_client_makes_all_three_calls(listeners: Listeners):
    command = [python_of_clients(RIVA), str(RIVA_SCENARIOS), f"127.0.0.1:{listeners.grpc}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results.pop("words") == ["Hello", "there"]
    assert results.pop("refused") == ["INVALID_ARGUMENT", "voice_not_found"]
    assert all(results.values()), results


def test_home_assistant_is_spoken_to(listeners: Listeners):
    spoken = asyncio.run(home_assistant_reads(listeners.wyoming, TEXT, None))
    assert spoken is not None
    assert len(spoken) > 10_000
    headers, audio = asyncio.run(home_assistant_streams(listeners.wyoming, list(LONG[:60]), None))
    assert (headers, len(audio) > 10_000) == (1, True)
