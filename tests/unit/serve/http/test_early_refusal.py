"""A full replica refuses before Serve has begun; whatever else there is to say is said where it always is."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from serve.access.authentication import Authenticator
from serve.config.app_config import LimitsConfig
from serve.http.early_refusal import EarlyRefusal
from serve.http.services import Services
from serve.http.speech_gate import SpeechGate
from serve.observability.reply_stats import Outcome
from tests.support.fakes import RecordingObserver, Speaker, make_services

OBSERVER = RecordingObserver()


def full() -> Services:
    OBSERVER.replies.clear()
    services = make_services(Speaker(), LimitsConfig(max_in_flight=1), observer=OBSERVER)
    services.speech.admission.in_flight = 1
    return services


def ask(
    services: Services | None, *, method: str = "POST", path: str = "/v1/audio/speech", peer: str = "127.0.0.1", **headers: str
) -> list[Any]:
    """What the client gets; nothing where the request goes on to Serve."""
    sent: list[Any] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        """Goes on."""

    async def receive() -> Any:
        raise AssertionError("it read the body")

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(b"host", b"localhost"), (b"x-request-id", b"abc"), *((k.encode(), v.encode()) for k, v in headers.items())]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "client": (peer, 1)}
    asyncio.run(EarlyRefusal(serve, gate=lambda: SpeechGate(services) if services else None)(scope, receive, send))
    return sent


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/tts/v1/audio/speech"])
def test_it_is_refused_and_counted_as_the_route_would(path):
    services = full()
    start, body = ask(services, path=path)
    headers, error = dict(start["headers"]), json.loads(body["body"])["error"]
    assert (start["status"], error["code"], error["request_id"]) == (429, "overloaded", "abc")
    assert (headers[b"retry-after"], headers[b"x-request-id"]) == (b"2", b"abc")
    assert [(one.outcome, one.code) for one in OBSERVER.replies] == [(Outcome.REFUSED, "overloaded")]


def test_a_draining_replica_refuses_as_draining():
    services = make_services(Speaker())
    services.speech.admission.close()
    start, body = ask(services)
    assert (start["status"], json.loads(body["body"])["error"]["code"]) == (503, "draining")


def test_with_a_place_left_it_goes_on():
    assert ask(make_services(Speaker())) == []


def test_in_a_proxy_it_goes_on():
    assert ask(None) == []


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/audio/speech"), ("POST", "/v1/text/plan"), ("GET", "/live")])
def test_other_routes_go_on(method, path):
    assert ask(full(), method=method, path=path) == []


def test_a_request_without_access_is_refused_for_that_and_not_for_want_of_room():
    services = dataclasses.replace(full(), authenticator=Authenticator())
    assert ask(services, peer="10.1.2.3") == [], "a stranger without a key"
    assert ask(services, **{"sec-fetch-site": "cross-site"}) == [], "another site's page"
    assert OBSERVER.replies == []


def test_a_page_is_refused_by_the_route_with_cors_headers():
    assert ask(full(), origin="http://localhost") == []
