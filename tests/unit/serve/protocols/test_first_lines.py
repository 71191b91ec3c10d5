"""The first requests that other servers' documentation shows, as they are printed there: only the address changes.

Clients that are packages are run for real in test_foreign_clients.py; these have none, or are too large for a test.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from serve.config.app_config import PROJECT
from tests.support.fakes import Speaker, make_services, shipped_library, shipped_models
from tests.support.live_server import Live, serving

SPEECH = "/v1/audio/speech"
SHAPES: dict[str, tuple[str, dict[str, Any]]] = json.loads((PROJECT / "tests/data/first_requests.json").read_text())
"""documentation of whom -> path and body"""


@pytest.fixture(scope="module")
def shipped() -> Iterator[Live]:
    """A server with the voices, and the names of models, that are shipped."""
    with serving(make_services(Speaker(), voice_id=shipped_library().canonical, models=shipped_models())) as live:
        yield live


@pytest.mark.parametrize("whose", SHAPES)
def test_the_first_request_of_the_documentation_speaks(shipped: Live, whose: str):
    path, body = SHAPES[whose]
    reply = requests.post(shipped.url + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert len(reply.content) > 2_000
    assert not {"voice", "model"} & set(reply.headers.get("X-Ignored-Fields", "").split(", "))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"input": "Hi.", "ref_audio": "https://example.com/a.wav", "ref_text": "Hello."}, "recording_not_supported"),
        ({"input": "Hi.", "references": [{"audio_path": "a.wav", "text": "Hello."}]}, "recording_not_supported"),
        ({"input": "Hi.", "voice": "somebody-else"}, "voice_not_found"),
        ({"input": "Hi.", "model": "somebody/else"}, "model_not_found"),
    ],
)
def test_another_persons_voice_never_speaks_in_silence(shipped: Live, body: dict[str, Any], code: str):
    assert requests.post(shipped.url + SPEECH, json=body, timeout=60).json()["error"]["code"] == code
