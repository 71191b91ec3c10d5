"""Names on the pages: each configuration key, metric, header, error code, route and folder is one there is."""

import ast
import re
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pipeline.config import PipelineConfig
from serve.config.app_config import AppConfig
from serve.config.model_versions import RoutesConfig
from tests.support.pages import PAGES, ROOT, section

TEXT = "\n".join(PAGES.values())
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "serve").rglob("*.py")))
ROOTS = (AppConfig, PipelineConfig, RoutesConfig)
METRICS = set(re.findall(r"\"(chattts_[a-z_]+)\"", SOURCES))
SPANS = set(re.findall(r"[a-z]+\.[a-z_]+", (ROOT / "serve/observability/tracing.py").read_text().partition("Owns:")[0]))
FILES = re.compile(r"\.(py|yaml|md|cpp|json|sqlite|pt)$")


def named_keys(text: str) -> set[str]:
    """The dotted configuration keys in backticks. Names of events and spans, which stand in the code as they are, are none."""
    sections = {name for root in ROOTS for name in root.model_fields}
    dotted = set(re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?:: [^`]*)?`", text))
    keys = {key for key in dotted if key.partition(".")[0] in sections and not FILES.search(key)}
    return {key for key in keys - SPANS if f'"{key}"' not in SOURCES}


def is_key(path: str) -> bool:
    """True if one of the root models has this key."""

    def within(annotation: Any, parts: list[str]) -> bool:
        models = [
            each for each in (annotation, *get_args(annotation)) if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        return not parts or any(
            parts[0] in model.model_fields and within(model.model_fields[parts[0]].annotation, parts[1:]) for model in models
        )

    return any(within(root, path.split(".")) for root in ROOTS)


@pytest.mark.parametrize("key", sorted(named_keys(TEXT)))
def test_named_configuration_keys_exist(key: str):
    assert is_key(key)


def test_a_key_that_does_not_exist_is_found():
    assert named_keys("`engine.slots` and `limits.max_in_fright`, `engine.py`") == {"engine.slots", "limits.max_in_fright"}
    assert is_key("engine.slots")
    assert not is_key("limits.max_in_fright")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\b(?:ray_)?(chattts_[a-z_]+|[a-z]+_total)\b", TEXT))))
def test_named_metrics_exist(name: str):
    assert METRICS & {name, f"chattts_{name}"}


@pytest.mark.parametrize("header", sorted(set(re.findall(r"`(X-[A-Za-z-]+)", TEXT)) - {"X-Forwarded-For"}))
def test_named_headers_exist(header: str):
    assert header.lower() in SOURCES.lower()


@pytest.mark.parametrize("path", sorted({path.rstrip("/") for path in re.findall(r"(?<!\d)(/(?:v1|admin)/[a-z/]+)", TEXT)}))
def test_named_routes_exist(path: str):
    route = re.sub(r"/(both|cities)(?=/|$)", r"/\\{\\w+\\}", path)
    assert re.search(rf'"{route}[/"]', SOURCES), f"{path} is no route"


@pytest.mark.parametrize(
    "code", sorted(set(re.findall(r"^\| \d{3} \| (.*?) \|", section("docs/api.md", "Errors"), re.MULTILINE)))
)
def test_named_error_codes_exist(code: str):
    missing = [each for each in re.findall(r"`(\w+)`", code) if f'"{each}"' not in SOURCES]
    assert missing == []


@pytest.mark.parametrize("top", ["serve", "pipeline"])
def test_every_folder_says_what_it_is_for(top: str):
    for source in sorted((ROOT / top).rglob("__init__.py")):
        assert ast.get_docstring(ast.parse(source.read_text())), source
