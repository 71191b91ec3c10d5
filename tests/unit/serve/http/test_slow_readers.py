"""Slow readers over a real server: their speech goes on without them, and they take nobody's place."""

import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pipeline.errors import EngineDead
from serve.config.app_config import LEAST_UNREAD_BYTES, LimitsConfig
from serve.http.services import Services
from serve.observability.reply_stats import Outcome
from tests.support.fakes import RecordingObserver, Speaker, make_services
from tests.support.live_server import POST, Live, read_all, serving
from tests.support.waiting import wait_until

PLACES = 2
CHUNKS = 12  # of ten seconds: more than the kernel's buffers take, less than one reply may hold
LONG = {"chunks": CHUNKS, "chunk_samples": 240_000}

pytestmark = pytest.mark.slow


class SlowReader:
    """A client that has read the head of its reply."""

    def __init__(self, live: Live, **fields: object) -> None:
        body = json.dumps({"input": "Hi.", "response_format": "pcm", "seed": 1, **fields}).encode()
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", live.port))
        self.socket.sendall(f"{POST}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        self.head = self.socket.recv(64)

    def read(self) -> bytes:
        """Everything that follows, as it comes over the connection."""
        return self.head + read_all(self.socket)


def of_chunks(reply: bytes) -> bytes:
    """The body of a chunked reply."""
    _, _, rest = reply.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


@pytest.fixture
def services() -> Services:
    return make_services(Speaker(**LONG), LimitsConfig(max_in_flight=PLACES), observer=RecordingObserver())


@pytest.fixture
def live(services: Services) -> Iterator[Live]:
    with serving(services) as live:
        yield live


@pytest.mark.parametrize(
    "fields", [{}, {"stream_format": "sse"}, {"stream": False}, {"stream": False, "timestamps": "segment"}]
)
def test_as_many_slow_readers_as_there_are_places_stop_nobody(live: Live, services: Services, fields: dict[str, object]):
    with ExitStack() as stack:
        readers = [SlowReader(live, **fields) for _ in range(PLACES)]
        for reader in readers:
            stack.enter_context(reader.socket)
            assert b" 200 " in reader.head
        wait_until(lambda: services.speech.admission.in_flight == 0)
        assert services.unread.total > 0, "they have not read it"
        whole = live.speak(input="Hi.", seed=1, **fields)
        assert whole.status_code == 200
        for reader in readers:
            received = reader.read()
            body = received.partition(b"\r\n\r\n")[2] if "stream" in fields else of_chunks(received)
            if "timestamps" in fields or "stream_format" in fields:
                assert len(body) == len(whole.content)
            else:
                assert hashlib.sha256(body).digest() == hashlib.sha256(whole.content).digest()
    wait_until(lambda: services.unread.total == 0)


def test_a_slow_reader_that_leaves_leaves_nothing(live: Live, services: Services):
    reader = SlowReader(live)
    wait_until(lambda: services.speech.admission.in_flight == 0 and services.unread.total > 0)
    reader.socket.close()
    wait_until(lambda: services.unread.total == 0)


def test_beyond_its_bound_the_speech_of_a_slow_reader_waits_and_so_does_its_place():
    speaker = Speaker(chunks=100, chunk_samples=240_000)
    limits = LimitsConfig(max_in_flight=1, max_unread_bytes=LEAST_UNREAD_BYTES)
    services = make_services(speaker, limits)
    with serving(services) as live:
        with SlowReader(live).socket:
            wait_until(lambda: services.unread.total > 0)
            assert live.speak().status_code == 429
            assert services.unread.total <= LEAST_UNREAD_BYTES
            assert speaker.produced < 40, "what the kernel's buffers take"
        wait_until(lambda: services.unread.total == services.speech.admission.in_flight == 0)


def test_what_was_spoken_before_a_failure_is_read_before_the_cut():
    observer = RecordingObserver()
    speaker = Speaker(**LONG, fails_at=CHUNKS - 1, error=EngineDead("in the middle"))
    services = make_services(speaker, LimitsConfig(max_in_flight=1), observer=observer)
    with serving(services) as live:
        reader = SlowReader(live)
        with reader.socket:
            wait_until(lambda: speaker.closed == 1 and services.speech.admission.in_flight == 0)
            assert services.unread.total > 0
            received = reader.read()
        wait_until(lambda: observer.replies != [])
    assert not received.endswith(b"0\r\n\r\n")
    assert len(received) > 2 * (CHUNKS - 1) * 240_000
    assert (observer.replies[0].outcome, observer.replies[0].code) == (Outcome.CUT, "engine_dead")


@pytest.mark.parametrize(
    ("limits", "code"), [({"stall_timeout_s": 0.3}, "reader_stalled"), ({"total_timeout_s": 1.0}, "timeout")]
)
def test_slow_readers_are_cut_after_their_speech_is_complete(limits: dict[str, float], code: str):
    observer = RecordingObserver()
    services = make_services(Speaker(**LONG), LimitsConfig(max_in_flight=1, **limits), observer=observer)
    with serving(services) as live:
        reader = SlowReader(live)
        with reader.socket:
            wait_until(lambda: observer.replies != [])
            assert not reader.read().endswith(b"0\r\n\r\n")
    assert (observer.replies[0].outcome, observer.replies[0].code) == (Outcome.CUT, code)
    assert services.unread.total == 0
