"""Configuration reference: every key with its type, default, unit and meaning, as Markdown.

In:    the configuration models
Out:   a page: one section per group of keys, one row per key
Never: a value of one environment (show_config prints those)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from serve.config.app_config import AppConfig
from serve.config.model_versions import RoutesConfig
from serve.config.policies import StepBacklogConfig

HEAD = """\
# Configuration reference

Written by `python -m scripts.generate` from the configuration models; `chattts-serve config show --markdown` prints it, too.
[Configuration](configuration.md) explains how the files are used. An unknown key is refused, and the message names the
nearest key, or what holds in place of a former one.
"""
ROOTS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("args", AppConfig, "The `args:` of the application."),
    ("user_config", RoutesConfig, "The `user_config:` of the deployment Ingress. A change needs no restart."),
    ("policy_kwargs", StepBacklogConfig, "The arguments of the autoscaling policy."),
)
UNIT = re.compile(r"\s*\[([^\]]+)\]$")
BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


@dataclass(frozen=True, slots=True)
class Row:
    """One key."""

    key: str
    type: str
    default: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """The keys that stand side by side at one dotted path."""

    path: str
    meaning: str
    rows: tuple[Row, ...]


def sections() -> Iterator[Section]:
    """Yields every section of the configuration, each model once."""
    visited: set[type[BaseModel]] = set()
    for path, model, meaning in ROOTS:
        yield from _sections(path, model, meaning, visited)


def markdown() -> str:
    """Returns the page."""
    parts = [HEAD]
    for section in sections():
        parts.append(f"\n## `{section.path}`\n\n{section.meaning}\n")
        if section.rows:
            parts.append("\n| key | values | default | meaning |\n|---|---|---|---|\n")
        for row in section.rows:
            cells = (f"`{row.key}`", row.type, f"{row.default} {row.unit}".rstrip(), row.meaning)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def _sections(path: str, model: type[BaseModel], meaning: str, visited: set[type[BaseModel]]) -> Iterator[Section]:
    visited.add(model)
    below: list[tuple[str, type[BaseModel]]] = []
    rows = []
    for key, field in model.model_fields.items():
        inner, is_mapping = _model_in(field.annotation)
        if inner is None or inner in visited:
            rows.append(_row(key, field))
        else:
            below.append((f"{path}.{key}" + (".<name@version>" if is_mapping else ""), inner))
    yield Section(path, meaning, tuple(rows))
    for inner_path, inner in below:
        if inner not in visited:
            yield from _sections(inner_path, inner, " ".join((inner.__doc__ or "").split()), visited)


def _row(key: str, field: FieldInfo) -> Row:
    text = field.description or ""
    unit = UNIT.search(text)
    return Row(key, _type(field.annotation, field.metadata), _default(field), unit[1] if unit else "", UNIT.sub("", text))


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Returns the section below a field, and whether there is one per name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) in (Union, UnionType, dict):
        inner = next((model for argument in get_args(annotation) if (model := _model_in(argument)[0])), None)
        return inner, get_origin(annotation) is dict
    return None, False


def _type(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [constraint for part in arguments[1:] for constraint in getattr(part, "metadata", [part])]
        return _type(arguments[0], inner)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join("null" if argument is type(None) else _type(argument, metadata) for argument in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0], [])}"
    if origin is dict:
        return f"mapping of {_type(arguments[0], [])} to {_type(arguments[1], [])}"
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " or ".join(f"`{value}`" for value in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section, as in `pipeline`"
    limits = " ".join(
        f"{word} {_number(getattr(part, name))}" for name, word in BOUNDS.items() for part in metadata if hasattr(part, name)
    )
    name = {"str": "text", "bool": "boolean", "int": "integer", "float": "" if limits else "number"}[annotation.__name__]
    return f"{name} {limits.removeprefix('from ') if ' to ' in limits else limits}".strip()


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, bool):
        return f"`{'null' if value is None else str(value).lower()}`"
    if isinstance(value, dict) and value:
        return f"{len(value)} names"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(entry) for entry in value)}]`"
    return f"`{_number(value) if isinstance(value, int | float) else value}`"


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else f"{value:.0f}"
