"""The models routes: licences of the weights, shares and states of versions."""

import pytest
import requests

from pipeline.config import PipelineConfig
from serve.config.model_versions import versions_of
from serve.resilience.rollout import Rollout
from serve.speech.model_selection import ModelSelector
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.model_versions import V1, V2, V3, rollout


@pytest.mark.parametrize(
    ("checkpoint", "name", "commercial"),
    [
        ("demo", "AGPL-3.0-or-later", True),
        ("small-random", "random numbers", True),
        ("hub:2Noise/ChatTTS", "CC-BY-NC-4.0", False),
        ("/some/folder", "unknown", None),
    ],
)
def test_models_say_what_their_weights_may_be_used_for(checkpoint, name, commercial):
    selector = ModelSelector(Rollout(versions_of(PipelineConfig(checkpoint=checkpoint), {})))
    with serving(make_services(Speaker(), models=selector)) as live:
        cards = requests.get(f"{live.url}/v1/models", timeout=9).json()["data"]
        one = requests.get(f"{live.url}/v1/models/tts-1", timeout=9).json()
    assert all(name in card["license"] and card["commercial_use"] is commercial for card in [*cards, one])
    assert (one["license_url"] is not None) == (commercial is False)


def test_a_model_is_found_by_every_name_that_speaks():
    with serving(make_services(Speaker(), models=ModelSelector(rollout(v1=3, v2=1), aliases={"Kokoro": V2}))) as live:
        for name in ("TTS-1", "tts-1-hd", "gpt-4o-mini-tts", "ChatTTS", V2.upper(), "kokoro"):
            assert requests.get(f"{live.url}/v1/models/{name}", timeout=60).json()["id"] == name
            assert live.speak(model=name).status_code == 200
        refused = requests.get(f"{live.url}/v1/models/nobody", timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_models_are_listed_with_their_state():
    with serving(make_services(Speaker(), models=ModelSelector(rollout(v1=3, v2=1)))) as live:
        cards = {card["id"]: card for card in requests.get(f"{live.url}/v1/models", timeout=60).json()["data"]}
        assert cards["chattts"]["versions"] == {V1: 0.75, V2: 0.25, V3: 0.0}
        assert cards[V2]["share"] == 0.25
        assert cards[V2]["state"] == "in_service"
        assert requests.get(f"{live.url}/v1/models/{V2}", timeout=60).json() == cards[V2]
        pinned = live.speak(model=V2)
        assert pinned.headers["X-Model-Version"] == V2
        assert live.services.speech.stream.__self__.requests[-1].model == V2
        assert live.speak(model="chattts@v9").json()["error"]["code"] == "model_not_found"
