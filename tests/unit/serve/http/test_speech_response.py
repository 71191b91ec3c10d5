"""Speech response: failures, time limits and clients that leave."""

import concurrent.futures
import socket
import time

import pytest
import requests

from pipeline.errors import (
    AtCapacity,
    AudioFault,
    DeadlineExceeded,
    EngineDead,
    EngineFault,
    InvalidRequest,
    NonFiniteOutput,
    NoSpeakableText,
    ReaderStalled,
    TextTooLong,
)
from serve.config.app_config import LimitsConfig
from tests.support.fakes import CHUNK, Speaker, close_to, make_services, pcm_of
from tests.support.live_server import CANARY, POST, error_of, read_all, serving
from tests.support.waiting import wait_until


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (InvalidRequest("no"), 400, "invalid_request", False),
        (NoSpeakableText("nothing to say", param="input"), 400, "no_speakable_text", False),
        (TextTooLong("too long", param="input"), 400, "input_too_long", False),
        (AtCapacity("full", retry_after_s=2.1), 429, "overloaded", True),
        (DeadlineExceeded("late"), 504, "timeout", True),
        (ReaderStalled("asleep"), 504, "reader_stalled", False),
        (EngineFault("broken"), 500, "engine_error", True),
        (AudioFault("encoder"), 500, "audio_error", True),
        (NonFiniteOutput("nan"), 500, "generation_failed", False),
        (EngineDead("dead"), 503, "engine_dead", True),
        (RuntimeError(CANARY), 500, "internal_error", False),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_failures_before_the_first_audio_have_a_status(error, status, code, retry, stream):
    speaker = Speaker(fails_at=0, error=error)
    with serving(make_services(speaker)) as live:
        reply = live.speak(stream=stream)
    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    assert ("x-should-retry" not in reply.headers) == retry
    if status in (429, 503):
        assert int(reply.headers["Retry-After"]) >= (3 if status == 429 else 1)
    assert speaker.closed == 1


def test_a_failure_after_the_first_audio_cuts_the_body():
    speaker = Speaker(fails_at=2, error=NonFiniteOutput("nan"))
    with serving(make_services(speaker)) as live:
        received = read_all(live.connect(b'{"input": "Hi.", "response_format": "pcm"}'))
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            live.speak()
        whole = live.speak(stream=False)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b" 200 OK" in head
    assert len(body) > 2 * CHUNK
    assert not body.endswith(b"0\r\n\r\n")
    assert b"nan" not in body
    assert whole.status_code == 500
    assert speaker.closed == speaker.opened


def test_no_first_audio_in_time_is_a_504():
    speaker = Speaker(first_pause_s=3600)
    with serving(make_services(speaker, LimitsConfig(first_audio_timeout_s=0.2))) as live:
        assert live.speak().status_code == 504
        assert live.speak(deadline_ms=50, stream=False).status_code == 504
        assert (speaker.closed, speaker.produced) == (2, 0), "nobody waited for it"


@pytest.mark.slow
def test_a_long_pause_and_a_long_whole_cut_the_body():
    for limits in (LimitsConfig(chunk_timeout_s=0.2), LimitsConfig(total_timeout_s=0.3)):
        speaker = Speaker(pause_s=3600)
        with serving(make_services(speaker, limits)) as live:
            received = read_all(live.connect(b'{"input": "Hi.", "response_format": "pcm"}'))
            assert b" 200 OK" in received
            assert not received.endswith(b"0\r\n\r\n")
            assert speaker.closed == 1


def test_a_body_that_never_comes_is_let_go():
    services = make_services(Speaker(), LimitsConfig(body_timeout_s=0.2))
    with serving(services) as live:
        with socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
            client.sendall(f"{POST}Content-Length: 100\r\n\r\n{{".encode())
            assert b" 408 " in client.recv(4096)
        wait_until(lambda: services.speech.admission.in_flight == 0)


@pytest.mark.slow
@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("container", ["pcm", "mp3"])
def test_a_client_that_leaves_closes_the_stream(has_begun, container):
    speaker = Speaker(chunks=None, pause_s=0.02, first_pause_s=0 if has_begun else 3600)
    services = make_services(speaker)
    with serving(services) as live:
        with live.connect(b'{"input": "Hi.", "response_format": "%s"}' % container.encode()) as client:
            if has_begun:
                client.recv(4096)
            wait_until(lambda: speaker.opened == 1)
            assert services.speech.admission.in_flight == 1
        wait_until(lambda: speaker.closed == 1)  # from here on it can produce nothing
        wait_until(lambda: services.speech.admission.in_flight == 0)


@pytest.mark.slow
def test_a_client_that_reads_nothing_stops_generation_and_is_cut():
    speaker = Speaker(chunks=None, chunk_samples=240_000)
    services = make_services(speaker, LimitsConfig(stall_timeout_s=0.5))
    with serving(services) as live:
        client = live.connect(b'{"input": "Hi.", "response_format": "pcm"}')
        wait_until(lambda: speaker.closed == 1)
        assert speaker.produced < 40  # 20 MB: what the kernel's buffers take
        assert not read_all(client).endswith(b"0\r\n\r\n")


def test_a_full_replica_refuses_at_once(capsys):
    speaker = Speaker(chunks=None, pause_s=0.02)
    services = make_services(speaker, LimitsConfig(max_in_flight=2))
    with serving(services) as live:
        inside = [live.connect(b'{"input": "Hi.", "response_format": "pcm"}') for _ in range(2)]
        wait_until(lambda: services.speech.admission.in_flight == 2)
        times = []
        for _ in range(10):
            began = time.perf_counter()
            reply = live.speak(input="x" * 4000)
            times.append(time.perf_counter() - began)
            assert (reply.status_code, error_of(reply)["code"]) == (429, "overloaded")
            assert int(reply.headers["Retry-After"]) >= 1
        assert services.speech.admission.in_flight == 2, "they were refused while the house was full, not after it"
        assert speaker.opened == 2
        with capsys.disabled():
            print(f"\n  refused after {1000 * min(times):.1f} .. {1000 * max(times):.1f} ms")
        for client in inside:
            client.close()
        wait_until(lambda: services.speech.admission.in_flight == 0)
        speaker.chunks = 1
        assert live.speak().status_code == 200


def test_sixteen_clients_at_once_receive_only_their_own_audio(live):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda seed: (seed, live.speak(seed=seed).content), range(16)))
    for seed, content in replies:
        assert close_to(content, pcm_of(seed))
