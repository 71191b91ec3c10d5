"""Messages: one sentence for every mistake in a configuration.

In:    what pydantic or our own walk found wrong
Out:   sentences with the dotted path, what was found, what is allowed and the nearest name
Never: Ray; reading a configuration
"""

import difflib
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pipeline.config import words_of

FORMER = {
    "breaker": "a stage is refused for 2 s when 5 calls and half of all within 10 s failed",
    "compat.repetition_penalty": "requests set it",
    "compat.sample_rate": "requests set it",
    "compat.temperature": "requests set it",
    "compat.top_k": "requests set it",
    "compat.top_p": "requests set it",
    "conversations.lead_s": "it is 5 s; a context may ask for up to 60 s",
    "conversations.max_contexts": "it is 8",
    "conversations.max_lead_s": "a context may ask for up to 60 s",
    "conversations.max_waiting_chars": "it is 16384",
    "degrade.escalate_above": "it is 0.8; degrade.steps says which steps there are",
    "degrade.escalate_after_s": "it is 5 s",
    "degrade.recover_after_s": "it is 30 s",
    "degrade.recover_below": "it is 0.5",
    "degrade.rtf": "it is 0.8",
    "degrade.seeded": "requests with a seed of their own are never simplified",
    "engine.attention_split": "it is chosen from engine.slots",
    "engine.block_steps": "it is 4",
    "engine.buffer_steps": "it is 256",
    "engine.bulk_patience_s": "it is 20 s",
    "engine.max_preempted": "it is 4",
    "engine.stall_timeout_s": "it is 30 s; limits.stall_timeout_s is that of clients",
    "engine.standard_patience_s": "it is 2 s",
    "jobs.lease_s": "it is 15 s",
    "jobs.max_body_bytes": "it is 16 MiB, or four times jobs.max_chars if that is more",
    "keys.refresh_s": "it is 0.5 s",
    "limits.body_grace_s": "it is 10 s; limits.body_min_bytes_per_s is the rate after them",
    "limits.max_body_bytes": "it is 1 MiB",
    "limits.max_receiving": "it is 128",
    "limits.max_receiving_bytes": "it is 64 MiB",
    "probe.failure_threshold": "it is 3",
    "probe.success_threshold": "it is 6",
    "quarantine": "a request that ended two replicas is refused for 10 minutes",
    "text": "the lengths of segments and the limits of a text worker are fixed; engine.ignore_eos has those for measurements",
    "user_config.rollback": "a version is judged by 20 requests within 5 minutes, and tried again after 10",
    "user_config.shadow": "compare two versions with requests that name them",
    "vocoder.call_timeout_s": "it is 8 s",
    "vocoder.chunk_steps": "vocoder.method decides it",
    "vocoder.look_ahead": "it is exact; a request with latency: low waits for less",
    "vocoder.max_waiting": "it is 256",
    "voices.creation_timeout_s": "each sentence of a new voice may take 120 s",
    "voices.refresh_s": "it is 0.5 s",
}
"""keys that are none any more, by the end of their path -> what holds now"""


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
            suffix = "" if isinstance(mistake["input"], Mapping) else f"; found {_short(mistake['input'])}"
            sentences.append(f"{path}: {words_of(mistake)}{suffix}")
    return sentences


def invalid(model: type[BaseModel], value: Any, at: str) -> Iterator[str]:
    """Yields what keeps a value from being one of a model; `at` as in `explain`."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        yield from explain(model, error, at)
    except (ValueError, TypeError, ImportError) as error:
        yield f"{at or 'the file'}: {error}"


def unknown_key(path: str, allowed: list[str]) -> str:
    """Returns a sentence that names the unknown key, and what replaced it or its nearest name and all allowed keys."""
    for key, replacement in FORMER.items():
        if f".{path}".endswith(f".{key}"):
            return f"{path}: no key since 0.3: {replacement}. Remove it"
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
