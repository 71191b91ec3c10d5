"""Old names are refused, and the message says the new one."""

import copy
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from pipeline.errors import ConfigError
from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import PROJECT, AppConfig, read_app_config
from serve.config.config_file import find_mistakes
from serve.config.messages import explain
from serve.config.model_versions import RoutesConfig, ShadowConfig
from serve.config.renamed_keys import RENAMED_KEYS, RENAMED_VALUES, SINCE

ARGS = {old: new for old, new in RENAMED_KEYS.items() if not old.startswith("user_config.")}
USER_CONFIG = {old: new for old, new in RENAMED_KEYS.items() if old not in ARGS}
PIPELINE = {old: new for old, new in RENAMED_KEYS.items() if old.startswith("pipeline.")}


def nested(path: str, value: Any) -> Any:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def says(path: str, new: str) -> str:
    return f"{path}: unknown key; since {SINCE} it is called {new}"


def knows(model: type[BaseModel], path: str) -> bool:
    *sections, key = path.split(".")
    annotation: Any = model
    for section in sections:
        annotation = annotation.model_fields[section].annotation
        annotation = ShadowConfig if section == "shadow" else annotation
    return key in annotation.model_fields


@pytest.mark.parametrize(("old", "new"), ARGS.items())
def test_an_old_key_of_the_args_is_refused_with_its_new_name(old: str, new: str):
    assert knows(AppConfig, new)
    assert not knows(AppConfig, old)
    with pytest.raises(ConfigError) as error:
        read_app_config(nested(old, 1))
    assert str(error.value) == says(f"args.{old}", new)


@pytest.mark.parametrize(("old", "new"), PIPELINE.items())
def test_an_old_key_of_one_model_is_refused_with_its_new_name(old: str, new: str):
    inner = nested(old.removeprefix("pipeline."), 1)
    with pytest.raises(ConfigError) as error:
        read_app_config({"models": {"chattts@v1.2": inner}})
    assert str(error.value) == says(f"args.models.chattts@v1.2.{old.removeprefix('pipeline.')}", new)


@pytest.mark.parametrize(("old", "new"), USER_CONFIG.items())
def test_an_old_key_of_the_user_config_is_refused_with_its_new_name(old: str, new: str):
    inner = old.removeprefix("user_config.")
    assert knows(RoutesConfig, new.removeprefix("user_config."))
    config: dict[str, Any] = nested(inner, 1)
    if "shadow" in config:
        config["shadow"]["version"] = "chattts@v2"
    with pytest.raises(ValidationError) as error:
        RoutesConfig.model_validate(config)
    assert explain(RoutesConfig, error.value, "user_config") == [says(old, new)]


def test_the_name_of_another_section_is_no_hint():
    with pytest.raises(ConfigError, match="did you mean") as error:
        read_app_config({"limits": {"rungs": 1}})
    assert SINCE not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("applications", 0, "args", "pipeline", "vocoder", "method"), ("pipeline.vocoder.method", "carry")),
        (
            ("applications", 0, "deployments", 2, "autoscaling_config", "policy", "policy_function"),
            ("policy.policy_function", "serve.scaling:WorkAhead"),
        ),
        (
            ("applications", 0, "runtime_env", "env_vars", "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"),
            ("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "serve.edge:middlewares"),
        ),
        (
            ("controller_options", "runtime_env", "env_vars", "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"),
            ("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "serve.edge:middlewares"),
        ),
    ],
)
def test_an_old_value_in_a_file_is_refused_with_its_new_name(place: tuple[Any, ...], value: tuple[str, str]):
    document = copy.deepcopy(parse_yaml((PROJECT / "configs/two-gpu.yaml").read_text()))
    assert find_mistakes(document) == []
    parent = document
    for part in place[:-1]:
        parent = parent[part]
    parent[place[-1]] = value[1]
    mistakes = find_mistakes(document)
    assert any(mistake.endswith(f"since {SINCE} it is called {RENAMED_VALUES[value]}") for mistake in mistakes), mistakes


def test_every_renamed_value_has_a_case():
    assert {key for key, _ in RENAMED_VALUES} == {
        "pipeline.vocoder.method",
        "policy.policy_function",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH",
    }
