"""Bounded fields: a message of a client with no more fields and values than it can need, whatever was sent.

In:    the text of a message, or its parsed fields, and the model that will check them
Out:   fields; ApiError
Never: a value of an unknown field; more than MOST_UNKNOWN names of them; a cost that grows faster than the message

A message of a MiB has room for 80,000 fields or 350,000 lists: one of more than MOST_PARSED_VALUES is refused before an object
is built of any. What is kept of the others is small: all that comes after, checks, copies and names of ignored fields, costs
the same for every message.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from pydantic import AliasChoices, BaseModel

from serve.errors import ApiError, bad_request
from serve.speech.schemas.json_size import check_json

MOST_UNKNOWN = 32
MOST_NAME_CHARS = 64
"""of an unknown field that is named"""
MOST_VALUES = 2000
"""in the known fields of a message: a dialogue of 50 lines has some 200"""
MOST_PARSED_VALUES = 10_000
"""in a message, unknown fields too; parsing so many takes some 10 ms"""
MOST_REFUSED_CHARS = 1 << 16
"""of a refused message, which is parsed again for the context that it names"""


def parse_object(frame: str) -> dict[str, Any]:
    """Parses the JSON object of a message.

    Raises:
        ApiError: 400
    """
    check_json(frame.encode(), MOST_PARSED_VALUES)
    try:
        fields = json.loads(frame)
    except ValueError:
        raise bad_request("invalid_json", "the message is not valid JSON") from None
    if not isinstance(fields, dict):
        raise bad_request("invalid_type", "a message is a JSON object")
    return fields


def object_in(frame: str | None) -> dict[str, Any]:
    """Returns the fields of a message that was refused; none if they cannot be read, or not quickly."""
    if frame is None or len(frame) > MOST_REFUSED_CHARS:
        return {}
    try:
        return parse_object(frame)
    except ApiError:
        return {}


def bounded(fields: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """Returns the known fields, and the first unknown ones without their values; the last name says how many there were more.

    Raises:
        ApiError: 400, there are too many values in the known fields.
    """
    known = names_of(kind)
    result = {name: fields[name] for name in sorted(known) if name in fields}
    unknown = len(fields) - len(result)
    short = (name for name in fields if name not in known and len(name) <= MOST_NAME_CHARS)
    named = {name: None if fields[name] is None else True for name in islice(short, MOST_UNKNOWN)}
    result |= named
    if unknown > len(named):
        result[f"+{unknown - len(named)}"] = True
    _check_values(list(result.values()))
    return result


@lru_cache
def names_of(kind: type[BaseModel]) -> frozenset[str]:
    """Returns the names of the fields of a model, and their aliases."""
    names = set(kind.model_fields)
    for field in kind.model_fields.values():
        alias = field.validation_alias
        names |= {str(choice) for choice in alias.choices} if isinstance(alias, AliasChoices) else set()
    return frozenset(names)


def _check_values(waiting: list[Any]) -> None:
    count = len(waiting)
    while waiting:
        value = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(inner)
        if count > MOST_VALUES:
            raise bad_request("out_of_range", f"the fields of a message have more than {MOST_VALUES} values")
        waiting.extend(inner)
