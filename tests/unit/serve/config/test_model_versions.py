"""Model versions: their deployments, and the mistakes of a file with several of them."""

import pytest

from pipeline.errors import (
    ConfigError,
)
from serve.config.app_config import read_app_config
from serve.config.config_file import find_mistakes
from serve.config.model_versions import deployments_of
from tests.support.model_versions import V1, V2


def test_every_version_has_deployments_of_its_own_or_shares_a_vocoder():
    config = read_app_config({"models": {V1: {}, V2: {"engine": {"slots": 4}, "vocoder_of": V1}}})
    assert deployments_of(config.versions) == (
        "Ingress", "TextNormalizer", f"AcousticModel-{V1}", f"Vocoder-{V1}", f"AcousticModel-{V2}",
    )  # fmt: skip
    assert [version.pipeline.engine.slots for version in config.versions] == [8, 4]
    assert deployments_of(read_app_config({}).versions) == ("Ingress", "TextNormalizer", "AcousticModel", "Vocoder")


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ({V2: {"engine": {"slotz": 4}}}, rf"args.models.{V2}.engine.slotz: unknown key; did you mean slots\?"),
        ({V2: {"vocoder_of": V1}}, "must be another version"),
        ({V2: {"vocoder_of": V2}}, "must be another version"),
        ({V1: {}, V2: {"vocoder_of": V1, "vocoder": {}}}, "remove one of the two"),
        ({"v2": {}}, "pattern"),
    ],
)
def test_wrong_models_are_named(models, says):
    with pytest.raises(ConfigError, match=says):
        read_app_config({"models": models})


def test_weights_of_unknown_versions_are_a_mistake_of_the_file():
    def document(user_config: object) -> dict:
        names = ["TextNormalizer", f"AcousticModel-{V1}", f"Vocoder-{V1}"]
        deployments = [{"name": name, "max_ongoing_requests": 1000} for name in names]
        ingress = {"name": "Ingress", "max_ongoing_requests": 1000, "user_config": user_config}
        application = {
            "import_path": "serve.app:build_app",
            "args": {"models": {V1: {}}},
            "deployments": [*deployments, ingress],
        }
        return {"http_options": {"host": "127.0.0.1"}, "applications": [application]}

    assert not find_mistakes(document({"weights": {V1: 1}}))
    assert "chattts@v2 is not one of models: chattts@v1" in find_mistakes(document({"weights": {V2: 1}}))[0]
    assert "did you mean weights?" in find_mistakes(document({"weight": {V1: 1}}))[0]
