"""OpenAPI: the parts of the document about bodies and errors, which the routes parse and write themselves.

In:    pydantic models, statuses
Out:   parts of an OpenAPI document
Never: requests
"""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

AUDIO_TYPES = (
    *("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm"),
    *("audio/basic", "audio/x-alaw-basic"),
)


class ErrorBody(BaseModel):
    """An error in OpenAI's shape. `message` never repeats what the client sent."""

    model_config = ConfigDict(extra="forbid")

    message: str
    type: str
    param: str | None
    code: str
    request_id: str


class ErrorReply(BaseModel):
    """The envelope of every error."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorBody


def takes(body: type[BaseModel]) -> dict[str, Any]:
    """Returns the description of a JSON body that the route parses itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the description of the errors a route may answer with."""
    return {status: {"model": ErrorReply, "description": HTTPStatus(status).phrase} for status in statuses}


def describe(api: FastAPI) -> None:
    """Replaces FastAPI's own error replies in the document by those of the service."""
    plain = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            document = plain()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas["ErrorReply"] = ErrorReply.model_json_schema()
            envelope = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}
            for operations in document["paths"].values():
                for operation in operations.values():
                    replies = operation["responses"]
                    if "HTTPValidationError" in str(replies.get("422")):
                        del replies["422"]  # our own refusal is a 400
                    replies.setdefault("default", {"description": "any other error", "content": envelope})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            definitions: dict[str, Any] = {}
            api.openapi_schema = _hoisted(document, definitions)
            api.openapi_schema["components"]["schemas"] |= definitions
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation says


def _hoisted(part: Any, definitions: dict[str, Any]) -> Any:
    """Returns the part without the definitions that pydantic puts into every schema; they are moved to `definitions`."""
    if isinstance(part, list):
        return [_hoisted(item, definitions) for item in part]
    if isinstance(part, str):
        return part.replace("#/$defs/", "#/components/schemas/") if part.startswith("#/$defs/") else part
    if not isinstance(part, dict):
        return part
    for name, definition in part.get("$defs", {}).items():
        definitions[name] = _hoisted(definition, definitions)
    return {key: _hoisted(value, definitions) for key, value in part.items() if key != "$defs"}
