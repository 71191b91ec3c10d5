"""The routes under /v1/audio/voices over a real store, and requests to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import requests

from pipeline.store.open import open_store
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from serve.config.app_config import VoicesConfig
from serve.http.services import Services
from tests.support.fakes import WIDTH as FAKE_WIDTH
from tests.support.fakes import Speaker, make_services, make_voices
from tests.support.live_server import Live, serving
from tests.support.recordings import SAID

WIDTH = 256
CATALOGUE = Path(__file__).resolve().parents[2] / "configs" / "voices.yaml"

assert FAKE_WIDTH != WIDTH, "these tests have a library of their own"


def services_with(url: str, **config: Any) -> Services:
    speaker = Speaker(chunks=4)
    settings = VoicesConfig(store=url, **config)
    library = VoiceLibrary(
        VoiceCatalogue.load(CATALOGUE, WIDTH), open_store(url), max_voices=settings.max_voices, allow_inline=settings.inline
    )
    return replace(make_services(speaker, voice_id=library.canonical), voices=make_voices(speaker.stream, library, settings))


@contextmanager
def voice_server(folder: Path) -> Iterator[Live]:
    """A server with a store in a folder; voices may be cloned and be embeddings in a request."""
    with serving(services_with(str(folder / "store.sqlite"), clone=True, inline=True, max_voices=20)) as server:
        yield server


def voices(live: Live, method: str = "GET", path: str = "", **options: Any) -> requests.Response:
    return requests.request(method, f"{live.url}/v1/audio/voices{path}", timeout=60, **options)


def refused(reply: requests.Response, status: int, code: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert error["code"] == code
    assert error["request_id"]
    return error


def clone(live: Live, content: bytes, **fields: str) -> requests.Response:
    data = {"name": "me", "ref_text": SAID, "consent": "true", **fields}
    return voices(live, "POST", data=data, files={"audio_sample": ("a.bin", content)})
