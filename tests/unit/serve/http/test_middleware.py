"""Middleware: request ids, keys, and permits that last as long as the reply."""

import time

import pytest
import requests

from pipeline.store.store import Store
from serve.access.api_keys import Quota
from serve.access.authentication import Authenticator
from serve.access.quotas import LocalQuotas
from serve.config.app_config import LimitsConfig
from tests.support.fakes import Speaker
from tests.support.guarded import add, guarded, ring_of, speak
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("request_id", "is_used"), [("a-b_c.9", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("<x>", False)]
)
def test_request_ids_are_kept_only_when_harmless(live, request_id, is_used):
    reply = requests.get(f"{live.url}/live", headers={"X-Request-ID": request_id}, timeout=60)
    assert (reply.headers["X-Request-ID"] == request_id) == is_used
    assert len(reply.headers["X-Request-ID"]) >= 7


def test_a_permit_lives_as_long_as_its_stream(store: Store):
    key, key_id = add(store, quota=Quota(requests_per_s=None, streams=1))
    quotas = LocalQuotas()
    with guarded(Authenticator(ring_of(store), quotas), Speaker(chunks=None, pause_s=0.01)) as live:
        head = f"X-API-Key: {key}\r\n"
        body = b'{"input": "Hello there.", "response_format": "pcm"}'
        with live.connect(body, head) as client:
            client.recv(4096)
            assert quotas.streams(key_id) == 1
            reply = speak(live, **{"X-API-Key": key})
            assert reply.json()["error"]["code"] == "too_many_concurrent_requests"
            assert int(reply.headers["Retry-After"]) >= 1
            assert requests.get(f"{live.url}/v1/models", headers={"X-API-Key": key}, timeout=60).status_code == 200
        wait_until(lambda: quotas.streams(key_id) == 0)


@pytest.mark.slow
def test_permits_return_to_zero_after_a_storm_of_clients_that_leave(store: Store):
    key, key_id = add(store, quota=Quota(requests_per_s=None, characters_a_day=None, streams=100))
    quotas = LocalQuotas()
    speaker = Speaker(chunks=None, pause_s=0.005, first_pause_s=0.02)
    with guarded(Authenticator(ring_of(store), quotas), speaker, LimitsConfig(max_in_flight=24)) as live:
        body = b'{"input": "Hello there.", "response_format": "pcm"}'
        for number in range(60):
            head = f"X-API-Key: {key}\r\n"
            client = live.connect(body[: len(body) // (1 + number % 2)] if number % 3 == 2 else body, head)
            if number % 3 == 0:
                client.recv(64)
            if number % 10 == 0:
                time.sleep(0.02)
            client.close()
        wait_until(lambda: quotas.streams(key_id) == 0 and live.services.speech.admission.in_flight == 0)
        assert speaker.opened == speaker.closed


def test_a_failing_route_gives_its_permit_back(store: Store):
    key, key_id = add(store, quota=Quota(requests_per_s=None, streams=1))
    quotas = LocalQuotas()
    for fails_at in (0, 2):
        with guarded(Authenticator(ring_of(store), quotas), Speaker(fails_at=fails_at)) as live:
            try:
                assert speak(live, **{"X-API-Key": key}).status_code == 500
            except requests.exceptions.ChunkedEncodingError:
                assert fails_at == 2
            wait_until(lambda: quotas.streams(key_id) == 0)
