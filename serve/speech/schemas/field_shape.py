"""Field shape: what a field that takes several kinds of value may be, in one sentence for its error message.

In:    the JSON schema of a body
Out:   words such as: true, false or {oral: 0..9, seed: 0..4294967295}
Owns:  nothing
Never: values that a client sent
"""

import functools
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]


@functools.cache
def shape_of(body: type[BaseModel], field: str) -> str:
    """Returns the sentence for a field whose schema is a choice; empty: it takes one kind of value, or null."""
    schema = _schema(body)
    choices = [one for one in schema["properties"].get(field, {}).get("anyOf", ()) if one.get("type") != "null"]
    return _choice(choices, schema.get("$defs", {})) if len(choices) > 1 else ""


@functools.cache
def _schema(body: type[BaseModel]) -> Schema:
    return body.model_json_schema()


def _choice(choices: list[Schema], definitions: Schema) -> str:
    return " or ".join(_words(one, definitions) for one in choices)


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
            return f"{{{', '.join(_property(name, one) for name, one in schema['properties'].items())}}}"
        case "object":
            key = f"name of up to {schema['propertyNames']['maxLength']} characters"
            value = _words(schema["additionalProperties"], definitions)
            return f"{{{key}: {value}}} (up to {schema['maxProperties']})"
        case _:
            most = f" of up to {schema['maxLength']} characters" if "maxLength" in schema else ""
            return f"a {schema['type']}{most}"


def _property(name: str, schema: Schema) -> str:
    """Returns the name of a property, with its choices or its bounds."""
    limited = next((one for one in schema.get("anyOf", ()) if "minimum" in one), schema)
    if "enum" in limited:
        return f"{name}: {'|'.join(limited['enum'])}"
    if "minimum" in limited:
        return f"{name}: {limited['minimum']:g}..{limited['maximum']:.12g}"
    return name
