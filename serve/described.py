"""Described: what the OpenAPI document says about bodies and errors, which the routes read and write by hand.

In:    pydantic models, statuses
Out:   parts of an OpenAPI document
Owns:  nothing
Never: requests
"""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

AUDIO_TYPES = ("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm")


class ErrorBody(BaseModel):
    """What went wrong, as OpenAI says it. `message` never repeats what a client sent."""

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
    """The JSON body of a route that parses it by itself."""
    schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors a route may answer with."""
    return {status: {"model": ErrorReply, "description": HTTPStatus(status).phrase} for status in statuses}


def describe(api: FastAPI, *bodies: type[BaseModel]) -> None:
    """Make the document say what the service does, and not what FastAPI assumes.

    Args:
        bodies: every model given to `takes`; their definitions go into the components.
    """
    plain = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            document = plain()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for body in bodies:
                schemas |= body.model_json_schema(ref_template="#/components/schemas/{model}").get("$defs", {})
            schemas |= {"ErrorReply": ErrorReply.model_json_schema(ref_template="#/components/schemas/{model}")}
            schemas |= schemas["ErrorReply"].pop("$defs")
            envelope = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}
            for operations in document["paths"].values():
                for operation in operations.values():
                    replies = operation["responses"]
                    if "HTTPValidationError" in str(replies.get("422")):
                        del replies["422"]  # our own refusal is a 400
                    replies.setdefault("default", {"description": "any other error", "content": envelope})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
        assert api.openapi_schema is not None
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation says
