"""Facts of HTTP that programs rely on which are no browser: HEAD, ranges, HTTP/1.0, keys and forms as others send them."""

import json
import socket

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from pipeline.store.store import Store
from serve.access.authentication import Authenticator
from serve.access.cross_origin import CrossOriginPolicy
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import Live, read_all, serving

BODY = json.dumps({"input": "Hello there.", "response_format": "pcm", "seed": 7}).encode()
HEAD_OF_1_0 = "POST /v1/audio/speech HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("path", ["/ready", "/v1/models", "/", "/v1/audio/voices", "/v1/voices", "/health"])
def test_head_says_what_get_says_without_a_body(live: Live, path: str):
    get, head = (requests.request(method, live.url + path, timeout=60) for method in ("GET", "HEAD"))
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert requests.head(live.url + "/nothing", timeout=60).status_code == 404


def test_a_preview_has_ranges(live: Live):
    url = f"{live.url}/v1/audio/voices/default/preview"
    whole = requests.get(url, timeout=60)
    part = requests.get(url, headers={"Range": "bytes=10-19", "If-Range": whole.headers["ETag"]}, timeout=60)
    if part.headers["ETag"] == whole.headers["ETag"]:
        assert (part.status_code, part.content) == (206, whole.content[10:20])
        assert part.headers["Content-Range"] == f"bytes 10-19/{len(whole.content)}"
    assert requests.get(url, headers={"Range": "bytes=999999999-"}, timeout=60).status_code == 416


@pytest.mark.parametrize("more", [{}, {"stream": False}])
def test_http_1_0_has_no_chunks(live: Live, more: dict[str, bool]):
    body = json.dumps({**json.loads(BODY), **more}).encode()
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
        client.sendall(f"{HEAD_OF_1_0}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head, _, audio = read_all(client).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert audio == live.post(BODY).content


def test_a_part_of_json_that_is_a_file_is_text(live: Live):
    """As a browser's FormData sends a Blob."""
    parts = {
        "job": ("blob", json.dumps({"title": "a"}), "application/json"),
        "file": ("a.txt", "Once upon a time. " * 3, "text/plain"),
    }
    reply = requests.post(f"{live.url}/v1/audio/jobs", files=parts, timeout=60)
    assert reply.status_code == 202, reply.text
    two = [("file", ("a.txt", "x", "text/plain")), ("file", ("b.txt", "x", "text/plain"))]
    assert requests.post(f"{live.url}/v1/audio/jobs", files=two, timeout=60).json()["error"]["code"] == "invalid_form"


def test_keys_where_the_clients_of_others_send_them(store: Store):
    key, _ = add(store)
    with guarded(Authenticator(ring_of(store))) as live:
        for speech in ("v1/audio/speech", "deployments/tts-1/audio/speech?api-version=2025-04-01-preview"):
            azure = f"{live.url}/openai/{speech}"
            assert requests.post(azure, json=json.loads(BODY), headers={"api-key": key}, timeout=60).status_code == 200
            assert requests.post(azure, json=json.loads(BODY), headers={"api-key": "ck-wrong"}, timeout=60).status_code == 401
        for models in ("v1/models", "models?api-version=2025-04-01-preview"):
            azure = f"{live.url}/openai/{models}"
            assert requests.get(azure, headers={"api-key": key}, timeout=60).json()["object"] == "list"
        path = f"{live.url.replace('http', 'ws')}/v1/text-to-speech/alloy/stream-input?output_format=pcm_24000"
        for name in ("xi-api-key", "xi_api_key", "authorization"):
            with connect(f"{path}&{name}={key}") as client:
                client.send('{"text": "Hello there. "}')
                client.send('{"text": ""}')
                messages = [json.loads(client.recv(timeout=30))]
                assert messages[0]["audio"]
                assert "ignored_fields" not in messages[0], "the key is no field of the query"
            with pytest.raises(InvalidStatus, match="401"):
                connect(f"{path}&{name}=ck-wrong")


def test_an_unknown_path_is_refused_in_the_words_of_its_protocol(live: Live):
    for path, headers, code in (
        ("/v1/nothing/at/all", {"xi-api-key": "none"}, lambda body: body["detail"]["status"]),
        ("/v1/text-to-speech/a/b/c", {}, lambda body: body["detail"]["status"]),
        ("/v1/listen", {"Authorization": "Token none"}, lambda body: body["err_code"].lower()),
        ("/v1/models/nobody", {"Authorization": "Token none"}, lambda body: body["err_code"].lower().removeprefix("model_")),
        ("/v1/models/nobody", {"xi-api-key": "none"}, lambda body: body["detail"]["status"].removeprefix("model_")),
        ("/v1/auth/grant/x", {}, lambda body: body["err_code"].lower()),
        ("/v1/nothing", {}, lambda body: body["error"]["code"]),
    ):
        assert code(requests.get(live.url + path, headers=headers, timeout=60).json()) == "not_found", path


def test_each_protocol_has_its_own_list_of_models(live: Live):
    def models(**headers: str) -> object:
        return requests.get(f"{live.url}/v1/models", headers=headers, timeout=60).json()

    deepgram = models(Authorization="Token none")
    assert [voice["canonical_name"] for voice in deepgram["tts"]] == ["default", "calm"]
    calm = deepgram["tts"][1]
    one = requests.get(f"{live.url}/v1/models/{calm['uuid']}", headers={"Authorization": "Token none"}, timeout=60)
    assert one.json() == calm
    assert deepgram["stt"] == []
    assert isinstance(models(**{"xi-api-key": "none"}), list)
    assert models(Authorization="Bearer none")["object"] == "list"  # type: ignore[index]


def test_extensions_of_browsers_are_allowed_by_their_kind():
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(origins=CrossOriginPolicy((), ("moz-extension://*",))))
    with serving(services) as live:
        for origin, status in (
            ("moz-extension://6b3c0b7e-0000", 200),
            ("chrome-extension://abc", 403),
            ("https://evil.example", 403),
        ):
            reply = live.post(BODY, Origin=origin)
            assert reply.status_code == status, origin
            assert reply.headers.get("Access-Control-Allow-Origin") == (origin if status == 200 else None)
