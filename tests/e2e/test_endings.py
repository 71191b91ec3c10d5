"""A replica dies under each kind of stream, on both data paths: each ends with its protocol's own word, never as if whole."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from wyoming.event import read_event, write_event
from wyoming.tts import Synthesize

from tests.support.cluster import is_idle
from tests.support.ports import free_port
from tests.support.riva_server import Caller, refusal
from tests.support.signals import stopped
from tests.support.started import PATIENT, START_TIMEOUT_S, Started, started, with_doors
from tests.support.waiting import is_ready, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]

TEXT = "Many words follow one another here, and none of them is the last one yet, " * 40 + "and that is all."
CHUNK_S = 10.0
"""how long a stream waits for its next audio: a replica that takes over comes later"""
OPEN_S = 2.0
"""how long a socket is watched behind an error, to see whether it closes"""
CHANGES = {
    "checkpoint: demo": "checkpoint: demo\n        speech: {parallel_segments: 1}",  # each stream has one slot
    "max_waiting: 16}": "max_waiting: 16, max_rtf: null}",  # all are served at once, however slowly
}


@dataclass
class Service:
    """A service and its ports."""

    of: Started
    grpc: int
    wyoming: int

    def is_idle(self) -> bool:
        with suppress(requests.RequestException):
            return is_idle(requests.get(f"{self.of.url}/health", timeout=10).json())
        return False


Stream = Iterator[str]
"""nothing once its first audio has come, then how it ended"""


def http(**fields: str) -> Callable[[Service], Stream]:
    def stream(service: Service) -> Stream:
        body = {"input": TEXT, **fields}
        with requests.post(f"{service.of.url}/v1/audio/speech", json=body, stream=True, timeout=120) as reply:
            assert reply.status_code == 200, reply.text
            pieces = reply.iter_lines() if "stream_format" in fields else reply.iter_content(4096)
            last = next(pieces)
            yield ""
            try:
                for piece in filter(None, pieces):
                    last = piece
            except requests.RequestException:
                yield "cut"
            else:
                yield (last.startswith(b"data: ") and error_in(json.loads(last.removeprefix(b"data: ")))) or "complete"

    return stream


def in_socket(path: str, *messages: dict[str, Any]) -> Callable[[Service], Stream]:
    def stream(service: Service) -> Stream:
        with connect(service.of.url.replace("http", "ws") + path, ping_interval=None, max_queue=None) as client:
            for message in messages:
                client.send(json.dumps(message))
            while not is_audio(frame := client.recv(timeout=120)):
                assert not error_in(json.loads(frame)), frame
            yield ""
            yield ending(client)

    return stream


def ending(client: ClientConnection) -> str:
    """The code of the error, if there is one, and the close code, or that the socket stays open."""
    error = ""
    try:
        while True:
            frame = client.recv(timeout=OPEN_S if error else 120)
            error = error or ("" if is_audio(frame) else error_in(json.loads(frame)))
    except TimeoutError:
        return f"{error} open"
    except ConnectionClosed:
        return f"{error} {client.close_code}".strip()


def is_audio(frame: str | bytes) -> bool:
    return isinstance(frame, bytes) or bool(json.loads(frame).get("audio"))


def error_in(message: dict[str, Any]) -> str:
    """The code of an error of any protocol; empty: the message is none."""
    error = message["code"].lower() if message.get("type") == "Error" else message.get("error", "")
    code: str = error["code"] if isinstance(error, dict) else error
    return code


def riva(service: Service) -> Stream:
    replies = Caller(f"127.0.0.1:{service.grpc}").stream({"text": TEXT, "sample_rate_hz": 24_000}, timeout=180)
    next(replies)
    yield ""
    code, details = refusal(lambda: replies)
    yield f"{code} {details.splitlines()[0].partition(' (')[0]}"  # behind it come HAProxy's number, or Ray's about its actor


def wyoming(service: Service) -> Stream:
    with socket.create_connection(("127.0.0.1", service.wyoming), timeout=120) as client, client.makefile("rwb") as stream:
        write_event(Synthesize(TEXT).event(), stream)
        events = iter(partial(read_event, stream), None)
        assert next(event.type for event in events if event.type != "audio-start") == "audio-chunk"
        yield ""
        last = None
        with suppress(ConnectionError):
            for event in events:
                last = event
        assert last is None or last.type in ("audio-chunk", "error")
        yield f"{last.data['code']} end" if last is not None and last.type == "error" else "end"


# Kind of stream -> how it is opened, how it ends when no replica goes on with it, and how when its ingress dies.
KINDS: dict[str, tuple[Callable[[Service], Stream], str, str]] = {
    "pcm": (http(response_format="pcm"), "cut", "cut"),
    "wav": (http(response_format="wav"), "cut", "cut"),
    "events": (http(response_format="pcm", stream_format="sse"), "timeout", "cut"),
    "conversation": (
        in_socket(
            "/v1/audio/conversation",
            {"type": "open", "speech": {"response_format": "pcm"}},
            {"type": "text", "text": TEXT},
            {"type": "flush"},
        ),
        "timeout open",
        "1006",
    ),
    "elevenlabs": (
        in_socket("/v1/text-to-speech/alloy/stream-input?output_format=pcm_24000", {"text": f"{TEXT} "}, {"text": ""}),
        "timeout 1011",
        "1006",
    ),
    "deepgram": (
        in_socket("/v1/speak?encoding=linear16&sample_rate=24000", {"type": "Speak", "text": TEXT}, {"type": "Flush"}),
        "timeout 1011",
        "1006",
    ),
    "riva": (riva, "DEADLINE_EXCEEDED timeout", "CANCELLED Stream removed"),
    "wyoming": (wyoming, "timeout end", "end"),
}


@pytest.fixture(scope="module", params=[(), ("--plain",)], ids=["through HAProxy", "through Serve's own proxy"])
def service(home: Path, folder: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    grpc, wyoming_port = free_port(), free_port()
    changes = with_doors(grpc, wyoming_port, limits=f"first_audio_timeout_s: 120, chunk_timeout_s: {CHUNK_S}") | CHANGES
    with started(*request.param, home=home, folder=folder, changes=changes, **PATIENT) as found:
        found.wait_until_ready()
        yield Service(found, grpc, wyoming_port)


def test_no_replica_goes_on_in_time(service: Service):
    """The controller, which would start the next one, is stopped meanwhile."""
    with stopped(service.of.one("ray::ServeController").pid):
        assert endings(service, "AcousticModel") == {kind: ending for kind, (_, ending, _) in KINDS.items()}
    wait_until(lambda: is_ready(service.of.url) and service.is_idle(), START_TIMEOUT_S)


def test_the_ingress_dies(service: Service, request: pytest.FixtureRequest):
    expected = {kind: ending for kind, (_, _, ending) in KINDS.items()}
    if "HAProxy" not in request.node.name:
        expected["riva"] = "INTERNAL The actor died unexpectedly before finishing this task."
    assert endings(service, "Ingress") == expected
    wait_until(lambda: is_ready(service.of.url) and service.is_idle(), START_TIMEOUT_S)


def endings(service: Service, deployment: str) -> dict[str, str]:
    """How a stream of each kind ends when the one replica of a deployment is killed behind their first audio."""
    streams = [begin(service) for begin, *_ in KINDS.values()]
    with ThreadPoolExecutor(len(streams)) as pool:
        list(pool.map(next, streams))
        os.kill(service.of.one(f"ray::ServeReplica:chattts:{deployment}").pid, signal.SIGKILL)
        return dict(zip(KINDS, pool.map(next, streams), strict=True))
