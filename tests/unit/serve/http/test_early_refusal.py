"""A full replica refuses before Serve has begun; whatever else there is to say is said where it always is."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from serve.access.authentication import Authenticator
from serve.config.app_config import LimitsConfig
from serve.http import admission_check
from serve.http.admission_check import AdmissionCheck
from serve.http.services import Services
from serve.observability.reply_stats import Outcome
from serve.protocols.outer_middleware import PATH, EarlyRefusal
from tests.support.fakes import RecordingObserver, Speaker, make_services
from tests.support.waiting import until

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
    messages: list[Any] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        """Goes on."""

    async def receive() -> Any:
        raise AssertionError("it read the body")

    async def send(message: Any) -> None:
        messages.append(message)

    raw = [(b"host", b"localhost"), (b"x-request-id", b"abc"), *((k.encode(), v.encode()) for k, v in headers.items())]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "client": (peer, 1)}
    asyncio.run(EarlyRefusal(serve, check=lambda: AdmissionCheck(services) if services else None)(scope, receive, send))
    return messages


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/tts/v1/audio/speech"])
def test_an_early_refusal_is_counted_as_one_of_the_route(path):
    services = full()
    start, body = ask(services, path=path)
    headers, error = dict(start["headers"]), json.loads(body["body"])["error"]
    assert (start["status"], error["code"], error["request_id"]) == (429, "overloaded", "abc")
    assert headers[b"x-request-id"] == b"abc"
    assert 1000 < int(headers[b"retry-after-ms"]) <= 1000 * int(headers[b"retry-after"]) <= 3000
    assert [(reply.outcome, reply.code) for reply in OBSERVER.replies] == [(Outcome.REFUSED, "overloaded")]


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


class Waits:
    """An application that reads a body before it takes a place, and counts who has come so far."""

    def __init__(self, services: Services) -> None:
        self.reached = 0
        self.body, self.spoken = asyncio.Event(), asyncio.Event()
        self._services = services

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached += 1
        await self.body.wait()
        with self._services.speech.admission.acquire():
            await self.spoken.wait()


async def arrive(middleware: EarlyRefusal) -> int | None:
    """Returns the status of a refusal; None where the application has answered."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1)}
    await middleware(scope, send, send)
    return messages[0]["status"] if messages else None


def test_of_a_burst_no_more_pass_than_there_are_places(monkeypatch):
    monkeypatch.setattr(admission_check, "SOON_S", 60.0)

    async def burst() -> tuple[int, list[int | None]]:
        services = make_services(Speaker(), LimitsConfig(max_in_flight=2))
        app, check = Waits(services), AdmissionCheck(services)
        middleware = EarlyRefusal(app, check=lambda: check)
        clients = [asyncio.create_task(arrive(middleware)) for _ in range(50)]
        await asyncio.sleep(0.01)
        app.body.set()
        refused = [await client for client in clients[2:]]
        app.spoken.set()
        return app.reached, [await client for client in clients[:2]] + refused

    assert asyncio.run(burst()) == (2, [None, None, *[429] * 48])


def test_bodies_that_do_not_come_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(admission_check, "SOON_S", 0.01)

    async def slow_ones() -> set[object]:
        services = make_services(Speaker(), LimitsConfig(max_in_flight=1))
        app, check = Waits(services), AdmissionCheck(services)
        middleware = EarlyRefusal(app, check=lambda: check)
        clients = [asyncio.create_task(arrive(middleware)) for _ in range(3)]
        await until(lambda: app.reached == 3)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return check._passed

    assert asyncio.run(slow_ones()) == set()


def test_a_waiting_request_takes_a_freed_place(monkeypatch):
    monkeypatch.setattr(admission_check, "SOON_S", 60.0)

    async def one_leaves() -> int:
        services = make_services(Speaker(), LimitsConfig(max_in_flight=1))
        app, check = Waits(services), AdmissionCheck(services)
        middleware = EarlyRefusal(app, check=lambda: check)
        first, second = (asyncio.create_task(arrive(middleware)) for _ in range(2))
        await until(lambda: app.reached == 1)
        first.cancel()
        await until(lambda: app.reached == 2)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        return app.reached

    assert asyncio.run(one_leaves()) == 2
