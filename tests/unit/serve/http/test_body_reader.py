"""Bodies on their way in: slow ones take nobody's place, wrong ones are refused by what they say they are."""

import asyncio
import contextlib
import gzip
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPResponse
from types import SimpleNamespace

import pytest
import requests

from serve.config.app_config import LimitsConfig
from serve.http import body_reader, uvicorn_protocols
from serve.http.body_reader import BodyReader
from serve.protocols.api import create_api
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import POST, Live, read_all, serving
from tests.support.waiting import wait_until

SPEECH = b'{"input": "Hi.", "response_format": "pcm"}'
FORM = "POST /v1/audio/voices HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
FORM_START = b'--x\r\nContent-Disposition: form-data; name="audio_sample"; filename="a"\r\n\r\n'


@contextlib.contextmanager
def senders(live: Live, number: int, start: bytes = b"{", head: str = POST, size: int = 1000) -> Iterator[list[socket.socket]]:
    """Connections whose body never goes on after its first bytes."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=60)) for _ in range(number)]
        for client in clients:
            client.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + start)
        yield clients


def code_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower(), "the rest of the body is never read"
    return f"{head.split()[1].decode()} {json.loads(body)['error']['code']}"


def test_slow_senders_take_no_place():
    services = make_services(Speaker(), LimitsConfig(max_in_flight=4))
    with serving(services) as live, senders(live, 64):
        wait_until(lambda: services.bodies.arriving == 64)
        assert services.speech.admission.in_flight == 0
        assert [live.speak().status_code for _ in range(20)] == [200] * 20
        assert services.bodies.arriving == 64, "nor were they in anybody's way"


@pytest.mark.parametrize(("head", "start"), [(POST, b"{"), (FORM, FORM_START)], ids=["json", "form"])
def test_of_too_many_bodies_the_slowest_gives_way(head: str, start: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body_reader, "MAX_RECEIVING", 4)
    services = make_services(Speaker())
    object.__setattr__(services.voices.maker.config, "clone", True)
    with serving(services) as live, senders(live, 4, start, head) as first:
        wait_until(lambda: services.bodies.arriving == 4)
        with senders(live, 3, start, head):
            wait_until(lambda: sum(client_has_answer(client) for client in first) == 3)
            assert services.bodies.arriving == 4
            assert live.speak().status_code == 200, "a body in one piece is let in, and drops another one"
            wait_until(lambda: all(client_has_answer(client) for client in first))
        assert [code_of(read_all(client)) for client in first] == ["408 body_timeout"] * 4
        wait_until(lambda: services.bodies.arriving == 0)


def test_the_newest_body_stays_however_close_behind_the_others_it_comes(monkeypatch: pytest.MonkeyPatch):
    async def wait_for_more() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async def arrive() -> None:
        began = asyncio.get_running_loop().time()
        monkeypatch.setattr(body_reader, "MAX_RECEIVING", 2)
        reader = BodyReader(LimitsConfig())
        readings = []
        for number in range(4):
            monkeypatch.setattr(body_reader, "_now", lambda number=number: began + number * 1e-6)
            request = SimpleNamespace(stream=wait_for_more, headers={"content-type": "application/json"})
            readings.append(asyncio.create_task(reader.read_json(request, bytes)))
            for _ in range(10):
                await asyncio.sleep(0)
        assert [reading.done() for reading in readings] == [True, True, False, False]
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    asyncio.run(arrive())


def client_has_answer(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        client.settimeout(20)


def test_bodies_are_bounded_in_bytes_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body_reader, "MAX_RECEIVING_BYTES", 100_000)
    services = make_services(Speaker())
    with serving(services) as live, senders(live, 1, b"x" * 60_000, size=90_000) as (first,):
        wait_until(lambda: services.bodies.arriving == 1)
        with senders(live, 1, b"x" * 60_000, size=90_000) as (second,):
            wait_until(lambda: client_has_answer(first) or client_has_answer(second))
            assert services.bodies.arriving == 1
            assert code_of(read_all(first if client_has_answer(first) else second)) == "408 body_timeout"
    wait_until(lambda: services.bodies.arriving == 0)


def test_a_body_that_dribbles_is_let_go_long_before_the_longest_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body_reader, "GRACE_S", 0.1)
    limits = LimitsConfig(body_min_bytes_per_s=1_000_000, body_timeout_s=600)
    services = make_services(Speaker(), limits)
    with serving(services) as live, senders(live, 1, size=10_000) as (client,):

        def dribble() -> bool:
            with contextlib.suppress(OSError):
                client.sendall(b" ")
            return client_has_answer(client)

        wait_until(dribble, timeout_s=20)
        assert code_of(read_all(client)) == "408 body_timeout"
        assert live.post(b" " * 1_000_000 + SPEECH).status_code == 200, "a large body in good time"


def test_a_full_house_refuses_before_the_body_is_there():
    speaker = Speaker(chunks=None, pause_s=0.02)
    services = make_services(speaker, LimitsConfig(max_in_flight=1))
    with serving(services) as live, live.connect(SPEECH):
        wait_until(lambda: services.speech.admission.in_flight == 1)
        with senders(live, 1, b"") as (client,):
            assert b" 429 " in client.recv(4096)


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/text/normalize", "/v1/audio/voices"])
@pytest.mark.parametrize("content", ["application/json", "multipart/form-data; boundary=x"])
def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(path: str, content: str):
    services = make_services(Speaker())
    object.__setattr__(services.voices.maker.config, "clone", True)
    messages = [{"type": "http.request", "body": FORM_START, "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message):
        assert message.get("status", 499) in (499, 415)

    headers = [(b"host", b"localhost"), (b"content-type", content.encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "query_string": b"",
    }
    asyncio.run(create_api(lambda: services)(scope, receive, send))
    assert services.bodies.arriving == 0


# What a body says it is.


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(make_services(Speaker())) as server:
        yield server


ROUTES = [
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/text-to-speech/x"),
    ("POST", "/v1/text-to-speech/x/stream"),
    ("POST", "/v1/text-to-dialogue"),
    ("POST", "/v1/text-to-dialogue/stream"),
    ("POST", "/v1/text-to-speech/x/with-timestamps"),
    ("POST", "/v1/text-to-speech/x/stream/with-timestamps"),
    ("POST", "/v1/text-to-dialogue/with-timestamps"),
    ("POST", "/v1/text-to-dialogue/stream/with-timestamps"),
    ("POST", "/v1/speak"),
    ("POST", "/v2/speak"),
    ("POST", "/v1/auth/grant"),
    ("POST", "/dev/captioned_speech"),
    ("POST", "/piper"),
    ("POST", "/vapi"),
    ("POST", "/v1/text/normalize"),
    ("POST", "/v1/text/ssml"),
    ("POST", "/v1/audio/speech/batch"),
    ("POST", "/v1/audio/dialogue"),
    ("POST", "/v1/audio/speech/plan"),
    ("POST", "/v1/audio/jobs"),
    ("POST", "/v1/audio/jobs/plan"),
    ("POST", "/v1/audio/jobs/x/parts/0"),
    ("POST", "/v1/text/refine"),
    ("PUT", "/v1/lexicons/x"),
    ("POST", "/v1/audio/voices"),
    ("POST", "/v1/audio/voices/random"),
    ("POST", "/v1/audio/voices/blend"),
    ("PATCH", "/v1/audio/voices/x"),
    ("POST", "/v1/pronunciation-dictionaries/add-from-rules"),
    *(("POST", f"/v1/pronunciation-dictionaries/x/{change}-rules") for change in ("set", "add", "remove")),
]


def error_in(reply: requests.Response) -> dict[str, str]:
    """Code and message, in any envelope."""
    document = reply.json()
    if "err_code" in document:
        return {"code": document["err_code"].lower(), "message": document["err_msg"]}
    if "error" in document:
        return document["error"]
    detail = document["detail"]  # of ElevenLabs, or of Kokoro
    return {**detail, "code": detail["status"] if "status" in detail else detail["error"]}


def test_every_route_with_a_body_is_in_the_list():
    paths = create_api(lambda: make_services(Speaker())).openapi()["paths"]
    routes = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    names = {"lexicons": "lexicon_id", "jobs": "job_id"}
    assert routes == {
        (method, path.replace("/x", f"/{{{names.get(path.split('/x')[0].split('/')[-1], 'name')}}}").replace("/0", "/{number}"))
        for method, path in ROUTES
    }


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[1] != "/piper"])  # which takes plain text
@pytest.mark.parametrize(
    "content",
    [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", "text/plain; application/json"],
)
def test_a_body_without_the_media_type_of_json_is_a_415(live: Live, method: str, path: str, content: str | None):
    headers = {} if content is None else {"Content-Type": content}
    reply = requests.request(method, live.url + path, data=b'{"input": "Hi."}', headers=headers, timeout=60)
    error = error_in(reply)
    assert (reply.status_code, error["code"]) == (415, "unsupported_media_type")
    assert "-H 'Content-Type: application/json'" in error["message"]


@pytest.mark.parametrize("content", ["application/json", "Application/JSON; charset=utf-8", "application/json ;charset=UTF-8"])
def test_json_may_name_its_charset(live: Live, content: str):
    assert live.post(SPEECH, **{"Content-Type": content}).status_code == 200


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_compressed_bodies_are_a_415(live: Live, method: str, path: str):
    for coding in ("gzip", "br", "gzip, identity"):
        headers = {"Content-Type": "application/json", "Content-Encoding": coding}
        reply = requests.request(method, live.url + path, data=gzip.compress(SPEECH), headers=headers, timeout=60)
        error = error_in(reply)
        assert (reply.status_code, error["code"]) == (415, "unsupported_content_encoding")
        assert reply.headers["Accept-Encoding"] == "identity"
    assert live.post(SPEECH, **{"Content-Encoding": "identity"}).status_code == 200


def status_of_reply(client: socket.socket) -> int:
    """Reads one whole reply: its head and its body may come apart."""
    reply = HTTPResponse(client, method="POST")
    reply.begin()
    reply.read()
    return reply.status


def go_on(client: socket.socket, piece: bytes) -> None:
    for _ in range(3000):
        client.sendall(piece)
        time.sleep(0.01)


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n", b"10000\r\n" + bytes(1 << 16) + b"\r\n"])
def test_a_body_that_goes_on_behind_its_reply_ends_with_the_connection(monkeypatch: pytest.MonkeyPatch, piece: bytes):
    """Whether it drips or pours."""
    monkeypatch.setattr(uvicorn_protocols, "MOST_BEHIND_REPLY", 1 << 20)
    monkeypatch.setattr(uvicorn_protocols, "BEHIND_REPLY_S", 0.5 if len(piece) < 100 else 60)
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\n"
    with serving(make_services(Speaker())) as live, socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
        client.sendall(head + b"Content-Length: 500000\r\n\r\n")
        assert status_of_reply(client) == 404
        client.sendall(bytes(500_000) + head + b"Transfer-Encoding: chunked\r\n\r\n" + piece)
        assert status_of_reply(client) == 404, "the body before was short enough"
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            go_on(client, piece)


@pytest.mark.parametrize("head", [b"", b"GET /live HTTP/1.1\r\nHost: local", b"POST /live HTTP/1.1\r\nX-A: 1\r\n"])
def test_a_head_that_does_not_come_ends_with_the_connection(monkeypatch: pytest.MonkeyPatch, head: bytes):
    """At first, and behind a request that was answered."""
    monkeypatch.setattr(uvicorn_protocols, "HEAD_S", 0.5)
    with serving(make_services(Speaker())) as live, socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
        if head:
            client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of_reply(client) == 200
        client.sendall(head)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1000) == b""


def test_the_time_of_a_head_is_not_that_of_its_reply(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uvicorn_protocols, "HEAD_S", 0.3)
    with serving(make_services(Speaker(chunks=8, pause_s=0.2))) as live, requests.Session() as session:
        for _ in range(2):
            reply = session.post(f"{live.url}/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"}, timeout=60)
            assert reply.status_code == 200
            assert reply.content


def test_a_head_that_does_not_end_ends_with_the_connection():
    with serving(make_services(Speaker())) as live, socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            go_on(client, b"X-Filler: " + b"y" * 1000 + b"\r\n")
