"""A replica dies under each kind of stream, on both data paths: each ends with its protocol's own word, never as if whole."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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

from tests.support.ports import free_port
from tests.support.riva_server import Caller, refusal
from tests.support.service import is_idle
from tests.support.signals import stopped
from tests.support.started import PATIENT, START_TIMEOUT_S, Started, started, with_listeners
from tests.support.waiting import is_ready, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]

TEXT = "Many words follow one another here, and none of them is the last one yet, " * 40 + "and that is all."
CHUNK_S = 10.0
"""how long a stream waits for its next audio: a replica that takes over comes later"""
OPEN_S = 2.0
"""how long a socket is watched behind an error, to see whether it closes"""
PATIENT_S = 300.0
"""how long it waits for one replica after the other"""
CHANGES = {
    "checkpoint: demo": "checkpoint: demo\n        speech: {parallel_segments: 1}",  # each stream has one slot
    "slots: 8, threads: 1, max_waiting: 16}": "slots: 10, threads: 1, max_waiting: 16, max_rtf: null}",  # however slowly
}


@dataclass
class Service:
    """A service and its ports."""

    of: Started
    grpc: int
    wyoming: int

    def health(self) -> dict[str, Any]:
        with suppress(requests.RequestException):
            return dict(requests.get(f"{self.of.url}/health", timeout=10).json())
        return {"acoustic": []}

    def is_idle(self) -> bool:
        health = self.health()
        return bool(health["acoustic"]) and is_idle(health)

    def is_decoding(self) -> bool:
        return any(engine["slots_used"] for engine in self.health()["acoustic"])


Stream = Iterator[str]
"""nothing once its first audio has come, then how it ended"""


def http(**fields: str) -> Callable[[Service], Stream]:
    def stream(service: Service) -> Stream:
        body = {"input": TEXT, **fields}
        with requests.post(f"{service.of.url}/v1/audio/speech", json=body, stream=True, timeout=PATIENT_S) as reply:
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
            while not is_audio(frame := client.recv(timeout=PATIENT_S)):
                assert not error_in(json.loads(frame)), frame
            yield ""
            yield ending(client)

    return stream


def ending(client: ClientConnection) -> str:
    """The code of the error, if there is one, and the close code, or that the socket stays open."""
    error = ""
    try:
        while True:
            frame = client.recv(timeout=OPEN_S if error else PATIENT_S)
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
    replies = Caller(f"127.0.0.1:{service.grpc}").stream({"text": TEXT, "sample_rate_hz": 24_000}, timeout=PATIENT_S)
    next(replies)
    yield ""
    code, details = refusal(lambda: replies)
    yield f"{code} {details.splitlines()[0].partition(' (')[0]}"  # behind it come HAProxy's number, or Ray's about its actor


def wyoming(service: Service) -> Stream:
    with (
        socket.create_connection(("127.0.0.1", service.wyoming), timeout=PATIENT_S) as client,
        client.makefile("rwb") as stream,
    ):
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


# Kind of stream -> how it is opened, and how it ends: no replica goes on with it in time; its replicas die one after the other;
# its ingress dies.
KINDS: dict[str, tuple[Callable[[Service], Stream], str, str, str]] = {
    "pcm": (http(response_format="pcm"), "cut", "cut", "cut"),
    "wav": (http(response_format="wav"), "cut", "cut", "cut"),
    "events": (http(response_format="pcm", stream_format="sse"), "timeout", "engine_dead", "cut"),
    "conversation": (
        in_socket(
            "/v1/audio/conversation",
            {"type": "open", "speech": {"response_format": "pcm"}},
            {"type": "text", "text": TEXT},
            {"type": "flush"},
        ),
        "timeout open",
        "engine_dead open",
        "1006",
    ),
    "elevenlabs": (
        in_socket("/v1/text-to-speech/alloy/stream-input?output_format=pcm_24000", {"text": f"{TEXT} "}, {"text": ""}),
        "timeout 1011",
        "engine_dead 1013",
        "1006",
    ),
    "elevenlabs, contexts": (
        in_socket(
            "/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_24000",
            {"text": f"{TEXT} ", "context_id": "c", "flush": True},
        ),
        "timeout open",
        "engine_dead open",
        "1006",
    ),
    "elevenlabs, dialogue": (
        in_socket(
            "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000",
            {"context_id": "c", "voices": ["alloy"]},
            {"context_id": "c", "inputs": [{"text": TEXT, "voice_id": "alloy"}], "flush": True},
        ),
        "timeout 1011",
        "engine_dead 1013",
        "1006",
    ),
    "deepgram": (
        in_socket("/v1/speak?encoding=linear16&sample_rate=24000", {"type": "Speak", "text": TEXT}, {"type": "Flush"}),
        "timeout 1011",
        "engine_dead 1013",
        "1006",
    ),
    "riva": (riva, "DEADLINE_EXCEEDED timeout", "UNAVAILABLE engine_dead", "CANCELLED Stream removed"),
    "wyoming": (wyoming, "timeout end", "engine_dead end", "end"),
}


@contextmanager
def service_of(home: Path, folder: Path, *arguments: str, chunk_s: float) -> Iterator[Service]:
    grpc, wyoming_port = free_port(), free_port()
    changes = with_listeners(grpc, wyoming_port, limits=f"first_audio_timeout_s: 120, chunk_timeout_s: {chunk_s}") | CHANGES
    with started(*arguments, home=home, folder=folder, changes=changes, **PATIENT) as running:
        running.wait_until_ready()
        yield Service(running, grpc, wyoming_port)


@pytest.fixture(scope="module", params=[(), ("--plain",)], ids=["through HAProxy", "through Serve's own proxy"])
def service(home: Path, folder: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    with service_of(home, folder, *request.param, chunk_s=CHUNK_S) as running:
        yield running


def test_no_replica_goes_on_in_time(service: Service):
    """The controller, which would start the next one, is stopped meanwhile."""
    with stopped(service.of.process_titled("ray::ServeController").pid):
        assert endings(service, "AcousticModel") == {kind: ending for kind, (_, ending, _, _) in KINDS.items()}
    wait_until(lambda: is_ready(service.of.url) and service.is_idle(), START_TIMEOUT_S)


def test_the_ingress_dies(service: Service, request: pytest.FixtureRequest):
    expected = {kind: ending for kind, (_, _, _, ending) in KINDS.items()}
    if "HAProxy" not in request.node.name:
        expected["riva"] = "INTERNAL The actor died unexpectedly before finishing this task."
    assert endings(service, "Ingress") == expected
    wait_until(lambda: is_ready(service.of.url) and service.is_idle(), START_TIMEOUT_S)


def test_whichever_replica_goes_on_dies(home: Path, folder: Path):
    """Until the take-overs of every stream are used up."""
    with service_of(home, folder, chunk_s=PATIENT_S) as service:
        ends = endings(service, "AcousticModel", are_killed_again=True)
        assert ends == {kind: ending for kind, (_, _, ending, _) in KINDS.items()}


def endings(service: Service, deployment: str, *, are_killed_again: bool = False) -> dict[str, str]:
    """How a stream of each kind ends when the one replica of a deployment is killed behind their first audio.

    Args:
        are_killed_again: so are the replicas that go on with them, as soon as they do.
    """
    streams = [begin(service) for begin, *_ in KINDS.values()]
    with ThreadPoolExecutor(len(streams)) as pool:
        list(pool.map(next, streams))
        ends = [pool.submit(next, stream) for stream in streams]

        def have_ended() -> bool:
            return all(end.done() for end in ends)

        while True:
            os.kill(service.of.process_titled(f"ray::ServeReplica:chattts:{deployment}").pid, signal.SIGKILL)
            for is_decoding in (False, True) if are_killed_again else ():
                wait_until(lambda now=is_decoding: have_ended() or service.is_decoding() is now, START_TIMEOUT_S)
            if not are_killed_again or have_ended():
                return {kind: end.result() for kind, end in zip(KINDS, ends, strict=True)}
