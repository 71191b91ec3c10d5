"""docs/clients.md: what the programs say that are filled in as the page tells, said to a server that asks for keys."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from openai import OpenAI

from pipeline.store.open import open_store
from serve.access.authentication import Authenticator
from tests.support.guarded import add, ring_of
from tests.support.live_server import Live, serving
from tests.support.pages import section
from tests.support.voice_routes import services_with

PAGE = "docs/clients.md"
HERE = "http://localhost:8000"
TEXT = "Hello there."


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, str]]:
    url = str(Path(tmp_path_factory.mktemp("hub")) / "store.sqlite")
    store = open_store(url)
    key, _ = add(store)
    services = services_with(url)
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store), has_open_lists=True))
    with serving(services) as live:
        yield live, key


def filled_in(title: str, field: str, live: Live) -> str:
    """The value that the page gives for a field, for this server."""
    (row,) = [line for line in section(PAGE, title).splitlines() if f"`{field}`" in line or line.startswith(f"| {field} |")]
    return re.findall(r"`([^`]+)`", row)[-1].replace(HERE, live.url)


def test_open_webui(hub):
    live, key = hub
    base = filled_in("Open WebUI", "AUDIO_TTS_OPENAI_API_BASE_URL", live)
    models = requests.get(f"{base}/audio/models", timeout=60).json().get("models", [])
    voices = requests.get(f"{base}/audio/voices", timeout=60).json().get("voices", [])
    model = filled_in("Open WebUI", "AUDIO_TTS_MODEL", live)
    assert model in [one["id"] for one in models]
    assert {one["id"]: one["name"] for one in voices}["default"]
    voice = filled_in("Open WebUI", "AUDIO_TTS_VOICE", live)
    reply = requests.post(
        f"{base}/audio/speech",
        json={"input": TEXT, "voice": voice, "model": model},
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}", "X-OpenWebUI-User-Name": "anna"},
        timeout=60,
    )
    assert reply.headers["Content-Type"] == "audio/mpeg", reply.text
    refused = requests.post(f"{base}/audio/speech", json={"input": TEXT, "voice": "nobody"}, timeout=60)
    assert refused.json()["error"]["message"], "it shows this to its user"


def test_sillytavern(hub):
    live, key = hub
    for voice in filled_in("SillyTavern", "Available Voices (comma separated)", live).split(","):
        reply = requests.post(
            filled_in("SillyTavern", "Provider Endpoint", live),
            json={
                "model": filled_in("SillyTavern", "Model", live),
                "input": TEXT,
                "voice": voice,
                "response_format": "mp3",
                "speed": 1,
            },
            headers={"Authorization": f"Bearer {key}"},
            timeout=60,
        )
        assert reply.headers["Content-Type"] == "audio/mpeg", reply.text


@pytest.mark.parametrize("kind", ["TTS_OPEN_AI_COMPATIBLE", "TTS_KOKORO"])
def test_anythingllm(hub, kind):
    live, key = hub
    kokoro = kind == "TTS_KOKORO"
    text = section(PAGE, "AnythingLLM")
    found = dict(re.findall(r"`(TTS_KOKORO_\w+)` is `([^`]+)`", text)) if kokoro else {}
    values = {
        name: found[f"{kind}_{name}"].replace(HERE, live.url) if kokoro else filled_in("AnythingLLM", f"{kind}_{name}", live)
        for name in ("ENDPOINT", "VOICE_MODEL")
    }
    model: Any = "kokoro" if kokoro else filled_in("AnythingLLM", f"{kind}_MODEL", live)
    client = OpenAI(base_url=values["ENDPOINT"], api_key=key, max_retries=0)
    spoken = client.audio.speech.create(model=model, voice=values["VOICE_MODEL"], input=TEXT)
    assert len(spoken.content) > 1000


def test_livekit_opens_its_connection_without_a_key(hub):
    live, _ = hub
    assert requests.get(f"{live.url}/v1/", timeout=60).json()["name"]


def test_lists_need_a_key_unless_the_operator_opens_them(tmp_path: Path):
    url = str(tmp_path / "store.sqlite")
    store = open_store(url)
    add(store)
    services = services_with(url)
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))
    with serving(services) as live:
        for path in ("/v1/audio/voices", "/v1/audio/models"):
            assert requests.get(f"{live.url}{path}", timeout=60).json()["error"]["code"] == "missing_api_key"


def test_open_lists_open_nothing_else(hub):
    live, _ = hub
    for path in ("/v1/models", "/v1/audio/voices/alloy", "/v1/voices", "/v1/user"):
        assert requests.get(f"{live.url}{path}", timeout=60).status_code == 401


def test_mixtures_are_written_as_the_page_writes_them(hub):
    live, key = hub
    head = {"Authorization": f"Bearer {key}"}
    for mixture, blend in (("nova+onyx", "blend:nova(1)+onyx(1)"), ("nova(2)+onyx(1)", "blend:nova(2)+onyx(1)")):
        said = [
            requests.post(f"{live.url}/v1/audio/speech", json={"input": TEXT, "voice": voice}, headers=head, timeout=60)
            for voice in (mixture, blend)
        ]
        assert [one.status_code for one in said] == [200, 200]
        assert said[0].headers["X-Voice-Id"] == said[1].headers["X-Voice-Id"]
    for wrong in ("nova+", "nova+nobody", "nova(0)+onyx", "nova - onyx + nova"):
        body = {"input": TEXT, "voice": wrong}
        assert requests.post(f"{live.url}/v1/audio/speech", json=body, headers=head, timeout=60).status_code == 400
