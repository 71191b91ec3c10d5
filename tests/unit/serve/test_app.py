"""The deployments and what their processes load."""

import subprocess
import sys

import pytest

from serve import app
from serve.config.app_config import PROJECT, read_app_config
from serve.config.model_versions import deployments_of


def test_deployments_have_the_names_configurations_know():
    deployed = (app.Ingress, app.TextNormalizer, app.AcousticModel, app.Vocoder)
    assert tuple(deployment.name for deployment in deployed) == deployments_of(read_app_config({}).versions)


HTTP_LAYER = "serve.http.api, serve.http.speech_response, serve.speech.schemas.speech, serve.config.app_config, serve.errors"


@pytest.mark.slow
def test_the_http_layer_does_not_load_ray():
    check = f"import sys, {HTTP_LAYER}; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=PROJECT, timeout=60)
