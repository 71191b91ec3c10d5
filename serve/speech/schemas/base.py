"""Body: parses and checks the body of a request once.

In:    the bytes of a body, the fields of a form
Out:   a frozen pydantic model; ApiError
Never: a client's text in an error message
"""

import functools
import json
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.config import words_of
from serve.errors import ApiError, bad_request

B = TypeVar("B", bound=BaseModel)

MOST_MISTAKES = 1000
"""of a body with more of them, no single one is named: a sentence for each takes too long"""


Schema = dict[str, Any]


@functools.cache
def shape_of(body: type[BaseModel], field: str) -> str:
    """Returns the sentence for a field whose schema is a choice; empty: it takes one kind of value, or null."""
    schema = _schema(body)
    choices = [choice for choice in schema["properties"].get(field, {}).get("anyOf", ()) if choice.get("type") != "null"]
    return _choice(choices, schema.get("$defs", {})) if len(choices) > 1 else ""


@functools.cache
def _schema(body: type[BaseModel]) -> Schema:
    return body.model_json_schema()


def _choice(choices: list[Schema], definitions: Schema) -> str:
    return " or ".join(_words(choice, definitions) for choice in choices)


def _words(schema: Schema, definitions: Schema) -> str:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return _choice(schema["anyOf"], definitions)
    match schema["type"]:
        case "boolean":
            return "true, false"
        case "array":
            most = f" (up to {schema['maxItems']})" if "maxItems" in schema else ""
            return f"[{_words(schema['items'], definitions)}]{most}"
        case "object" if "properties" in schema:
            return f"{{{', '.join(_property(name, value_schema) for name, value_schema in schema['properties'].items())}}}"
        case "object":
            key = f"name of up to {schema['propertyNames']['maxLength']} characters"
            value = _words(schema["additionalProperties"], definitions)
            return f"{{{key}: {value}}} (up to {schema['maxProperties']})"
        case _:
            most = f" of up to {schema['maxLength']} characters" if "maxLength" in schema else ""
            return f"a {schema['type']}{most}"


def _property(name: str, schema: Schema) -> str:
    """Returns the name of a property, with its choices or its bounds."""
    limited = next((choice for choice in schema.get("anyOf", ()) if "minimum" in choice), schema)
    if "enum" in limited:
        return f"{name}: {'|'.join(limited['enum'])}"
    if "minimum" in limited:
        return f"{name}: {limited['minimum']:g}..{limited['maximum']:.12g}"
    return name


class Body(BaseModel):
    """A JSON object of a client: no coercion, no NaN or infinity. A field that is null is left out."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="forbid")


def read_body(kind: type[B], raw: bytes) -> B:
    """Parses and checks the bytes of a body.

    Raises:
        ApiError: 400, with the field at fault.
    """
    try:
        if b"null" in raw:
            with suppress(ValueError):  # it is refused below
                raw = json.dumps(without_null(json.loads(raw))).encode()
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(kind, error) from None
    except RecursionError:
        raise bad_request("invalid_json", "the body is nested too deeply") from None


def read_values(kind: type[B], values: dict[str, Any]) -> B:
    """Checks the fields of a form, in which numbers are text, or of a body in another protocol.

    Raises:
        ApiError: 400, with the field at fault.
    """
    try:
        return kind.model_validate(without_null(values), strict=False)
    except ValidationError as error:
        raise _refusal(kind, error) from None


def without_null(value: Any) -> Any:
    """Returns parsed JSON in which a field that is null is left out: clients write null for what they do not set."""
    if isinstance(value, dict):
        return {name: without_null(inner) for name, inner in value.items() if inner is not None}
    return [without_null(inner) for inner in value] if isinstance(value, list) else value


def _refusal(kind_of_body: type[BaseModel], error: ValidationError) -> ApiError:
    """Returns the reply for the first mistake. pydantic's sentences name bounds and choices, never the input."""
    if (count := error.error_count()) > MOST_MISTAKES:
        return bad_request("invalid_request", f"the body has {count} mistakes; GET /openapi.json has the fields there are")
    mistake: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    kind = mistake["type"]
    field = mistake["loc"][0] if mistake["loc"] else None
    param = field if field in kind_of_body.model_fields else None
    if kind.startswith("json"):
        return bad_request("invalid_json", "the body is not valid JSON (UTF-8, finite numbers, no lone surrogates)")
    inside = len(mistake["loc"]) > 1
    where = _place(mistake["loc"])
    if kind == "missing":
        return bad_request("missing_field", f"{where} is required", param=param)
    if kind == "extra_forbidden" and inside:
        holder = where.rpartition(".")[0] or where
        return bad_request(
            "unknown_field", f"{holder} has an unknown field; GET /openapi.json has those there are", param=param
        )
    if kind == "extra_forbidden":
        known = ", ".join(kind_of_body.model_fields)
        return bad_request("unknown_field", f"there is an unknown field; known are {known}", param=param)
    if param is None:
        return bad_request("invalid_type", "the body must be a JSON object")
    if param is not None and (shape := shape_of(kind_of_body, param)):
        # pydantic lists the mistakes of every kind; the first one is about the plainest.
        code = "invalid_type" if kind == "string_type" else "out_of_range"
        return bad_request(code, f"{param} is {shape}", param=param)
    code = "invalid_type" if kind.endswith("_type") else "out_of_range"
    return bad_request(code, f"{where}: {words_of(mistake)}", param=param)


def _place(parts: tuple[int | str, ...]) -> str:
    """Returns where in a body something is: turns[3].speed. Names of a mapping are the client's own and are left out."""
    written = str(parts[0]) if parts else ""
    for before, part in pairwise(parts):
        if isinstance(part, int):
            written += f"[{part}]"
        elif isinstance(before, int):
            written += f".{part}"
    return written
