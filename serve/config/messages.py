"""Messages: one sentence for every mistake in a configuration.

In:    what pydantic or our own walk found wrong
Out:   sentences with the dotted path, what was found, what is allowed and the nearest name
Never: Ray, torch; reading a configuration
"""

import difflib
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pipeline.config import words_of


def explain(model: type[BaseModel], error: ValidationError, at: str) -> list[str]:
    """Returns one sentence per mistake.

    Args:
        at: dotted path of the place that `model` describes.
    """
    sentences = []
    for mistake in error.errors(include_url=False):
        path = dotted(at, mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            sentences.append(unknown_key(path, _keys_beside(model, mistake["loc"])))
        else:
            found = "" if isinstance(mistake["input"], Mapping) else f"; found {_short(mistake['input'])}"
            sentences.append(f"{path}: {words_of(mistake)}{found}")
    return sentences


def unknown_key(path: str, allowed: list[str]) -> str:
    """Returns a sentence that names the unknown key, its nearest name, and all allowed keys."""
    near = difflib.get_close_matches(path.rpartition(".")[2], allowed, n=1, cutoff=0.0)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{path}: unknown key{hint} Allowed: {', '.join(sorted(allowed))}"


def dotted(at: str, loc: tuple[int | str, ...]) -> str:
    """Returns a path as people write it: args.pipeline.engine.slots, applications[0].name."""
    path = at
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _keys_beside(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    annotation: Any = model
    for part in loc[:-1]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            annotation = annotation.model_fields[str(part)].annotation
        else:  # dict[key, Model]
            annotation = get_args(annotation)[-1]
        if get_origin(annotation) in (Union, UnionType):  # Model | None
            annotation = get_args(annotation)[0]
    assert issubclass(annotation, BaseModel)
    return list(annotation.model_fields)


def _short(value: object) -> str:
    text = repr(value)
    if "://" in text and ("@" in text or "redis" in text):
        return "a URL, not shown here: it may hold a password"
    return text if len(text) <= 80 else f"{text[:77]}..."
