"""The routes on a real socket, over fakes."""

import asyncio
from typing import Any

import pytest
import requests

from serve.http.services import Services
from serve.protocols.api import create_api
from tests.support.live_server import CANARY, error_of


def test_models_voices_and_the_front_page(live):
    listed = requests.get(f"{live.url}/v1/models", timeout=60).json()
    assert listed["object"] == "list"
    assert {"chattts", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"} <= {card["id"] for card in listed["data"]}
    assert requests.get(f"{live.url}/v1/models/tts-1", timeout=60).json()["object"] == "model"
    voices = requests.get(f"{live.url}/v1/audio/voices", timeout=60).json()["voices"]
    assert voices[0]["id"] == "default"
    assert "alloy" in voices[0]["aliases"]
    assert requests.get(f"{live.url}/v1/audio/voices?legacy=1", timeout=60).json() == {"voices": ["default", "calm"]}
    assert requests.get(live.url, timeout=60).json()["name"] == "chattts-serve"
    page = requests.get(live.url, headers={"Accept": "text/html,*/*"}, timeout=60)
    assert page.headers["Content-Type"].startswith("text/html")
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert requests.get(f"{live.url}/live", timeout=60).status_code == 200
    assert requests.get(f"{live.url}/ready", timeout=60).json() == {"status": "ready"}
    assert requests.get(f"{live.url}/health", timeout=60).json()["admission"]["capacity"] == 64


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", f"/{CANARY}", 404, "not_found"),
        ("GET", "/v1/audio/speech", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", f"/v1/models/{CANARY}", 404, "model_not_found"),
    ],
)
def test_unknown_routes_and_methods_keep_the_envelope(live, method, path, status, code):
    reply = requests.request(method, f"{live.url}{path}", timeout=60)
    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    if status == 405:
        assert reply.headers["Allow"]


def test_the_routes_start_before_the_services_are_built():
    """Serve opens an ingress replica's application while its parts are still being built."""

    def services() -> Services:
        raise AssertionError("there are none yet")

    messages, replies = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}], []

    async def receive() -> dict[str, str]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        replies.append(message["type"])

    asyncio.run(create_api(services)({"type": "lifespan"}, receive, send))
    assert replies == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
