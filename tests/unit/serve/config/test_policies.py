"""Policies: settings that make no sense are refused."""

import pytest
from pydantic import ValidationError

from pipeline.errors import ConfigError
from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import PROJECT, read_app_config
from serve.config.config_file import find_mistakes
from serve.config.policies import DegradeConfig


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": ["bulk", "refine"]},
        {"steps": ["refine", "refine"]},
        {"steps": ["music"]},
    ],
)
def test_a_ladder_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError):
        DegradeConfig.model_validate(wrong)


def test_a_lighter_version_must_exist():
    with pytest.raises(ConfigError, match="must be one of models"):
        read_app_config({"degrade": {"steps": ["version"], "version": "small@v1"}, "models": {"chattts@v1": {}}})


def test_a_configuration_with_a_misspelt_kwarg_is_refused_with_its_path():
    text = (PROJECT / "configs/two-gpu.yaml").read_text()
    assert find_mistakes(parse_yaml(text)) == []
    (mistake,) = find_mistakes(parse_yaml(text.replace("{utilisation: 0.75, wait_s: 1}", "{utilization: 0.75}")))
    assert mistake.startswith("applications[0].deployments[2].autoscaling_config.policy.policy_kwargs.utilization: unknown key")
    assert "did you mean utilisation?" in mistake
    (mistake,) = find_mistakes(parse_yaml(text.replace("{utilisation: 0.75, wait_s: 1}", "{utilisation: 75}")))
    assert "policy_kwargs.utilisation: Input should be less than or equal to 1; found 75" in mistake
