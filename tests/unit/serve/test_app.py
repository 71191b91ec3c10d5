"""The deployments and what their processes load."""

import subprocess
import sys
from typing import Any

import pytest
from ray.serve import Application
from ray.serve.schema import ServeApplicationSchema

from pipeline.errors import ConfigError
from pipeline.yaml_loader import parse_yaml
from serve import app
from serve.config.app_config import PROJECT, read_app_config


def test_deployments_have_the_names_configurations_know():
    deployed = (app.Ingress, app.TextNormalizer, app.AcousticModel, app.Vocoder)
    assert tuple(deployment.name for deployment in deployed) == read_app_config({}).deployments


HTTP_LAYER = (
    "serve.protocols.api, serve.http.speech_response, serve.speech.schemas.speech, serve.config.app_config, serve.errors"
)


@pytest.mark.slow
def test_the_http_layer_does_not_load_ray():
    check = f"import sys, {HTTP_LAYER}; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=PROJECT, timeout=60)


def shape(application: Application) -> dict[str, Any]:
    """Deployment -> what it is constructed with, of everything that an application binds."""
    bound = application._bound_deployment
    options: dict[str, Any] = {}
    arguments = []
    for argument in bound.init_args:
        stages = argument.values() if isinstance(argument, dict) else ()
        inner = [stage for stage in stages if isinstance(stage, Application)]
        for stage in inner:
            options |= shape(stage)
        arguments.append(sorted(argument) if inner else argument)
    return options | {bound.name: arguments}


@pytest.mark.parametrize("name", ["dev", "cpu", "gpu", "two-gpu", "k8s-prod"])
def test_the_same_arguments_from_python_and_from_yaml(name: str):
    document = parse_yaml((PROJECT / f"configs/{name}.yaml").read_text())
    through_serve = ServeApplicationSchema.model_validate(document["applications"][0]).args
    python = read_app_config(through_serve | {"source": None}).model_dump(exclude_unset=True)  # tuples, enums, paths
    from_yaml, from_python = (shape(app.build_app(args)) for args in (through_serve | {"source": None}, python))
    assert from_python == from_yaml
    assert {deployment["name"] for deployment in document["applications"][0]["deployments"]} == set(from_yaml)


def test_without_arguments_it_is_the_demo_voice():
    built = shape(app.build_app({}))
    assert built["Ingress"][0].pipeline.checkpoint == "demo"
    with pytest.raises(ConfigError, match=r"args\.pipeline\.engine\.slotz"):
        app.build_app({"pipeline": {"engine": {"slotz": 3}}})


def test_an_application_that_sets_no_limits_takes_more_than_serves_default():
    """`serve.run(build_app({...}))` has no `deployments:` section; Serve would give each replica five requests."""
    for deployment in (app.Ingress, app.TextNormalizer, app.AcousticModel, app.Vocoder):
        assert deployment.max_ongoing_requests >= 64, deployment.name
