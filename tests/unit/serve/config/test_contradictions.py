"""Contradictions: each pair of numbers that bound each other is refused the wrong way round, and nothing else is."""

import re
from typing import Any

import pytest

from pipeline.config import PipelineConfig
from pipeline.errors import ConfigError
from serve.config.app_config import PROJECT, AppConfig, read_app_config
from serve.config.config_file import check_file
from serve.config.contradictions import PAIRS, Pair


def number(path: str) -> tuple[Any, Any]:
    """Default of a setting, and the constraint on it."""
    model: Any = AppConfig
    *sections, key = path.split(".")
    for section in sections:
        model = model.model_fields[section].annotation
    field = model.model_fields[key]
    bounds = {
        name: value for one in field.metadata for name in ("ge", "gt", "le") if (value := getattr(one, name, None)) is not None
    }
    return field.default, bounds


def args(**numbers: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in numbers.items():
        *sections, key = path.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return found


def complaint(pair: Pair, written: dict[str, Any]) -> bool:
    """Whether the pair is what is wrong."""
    try:
        read_app_config(written)
    except ConfigError as error:
        return re.search(rf"{pair.lesser} .*must not be above {pair.greater} .*: {pair.otherwise}", str(error)) is not None
    return False


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.lesser}-{pair.greater}")
def test_a_pair_is_refused_the_wrong_way_round_and_only_so(pair: Pair):
    (default, lesser), (other, greater) = number(pair.lesser), number(pair.greater)
    assert default * pair.times <= other * pair.unit
    least = greater["ge"] if "ge" in greater else greater["gt"] + 0.001
    wrong = args(**{pair.lesser: lesser.get("le", 10_000), pair.greater: least})
    assert complaint(pair, wrong)
    if "pipeline" in wrong:  # in one of several versions
        own = wrong.pop("pipeline")
        assert complaint(pair, {**wrong, "models": {"other@1": {}, "own@1": own}})
    equal = args(**{pair.lesser: default, pair.greater: -(-default * pair.times // pair.unit)})
    assert not complaint(pair, equal)


def test_a_limit_that_nobody_wrote_contradicts_no_lower_one():
    read_app_config({"limits": {"total_timeout_s": 10}})
    with pytest.raises(ConfigError, match="chunk_timeout_s 30"):
        read_app_config({"limits": {"total_timeout_s": 10, "chunk_timeout_s": 30}})


def test_every_shipped_configuration_agrees_with_itself():
    assert PipelineConfig() == AppConfig().pipeline
    for path in (PROJECT / "configs").glob("*.yaml"):
        if path.name != "voices.yaml":
            check_file(path)
