"""Neighbours: the routes of protocols that have one each, every one a translation of POST /v1/audio/speech.

In:    HTTP
Out:   audio and JSON as the clients of Kokoro-FastAPI, of Piper and Vapi read them
"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from starlette.types import Message

from serve.access.api_keys import Scope
from serve.http.body_reader import media_type_of
from serve.http.dependencies import RequestServices
from serve.http.openapi import answers, takes
from serve.http.route_access import listing, requires
from serve.http.speech_response import SpeechResponse
from serve.protocols.others import kokoro, piper, vapi
from serve.protocols.others.protocol import CAPTIONED

router = APIRouter()

BYTES = {"schema": {"type": "string", "format": "binary"}}
REFUSED = answers(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)


class KokoroErrorBody(BaseModel):
    """An error. `message` never repeats what the client sent."""

    model_config = ConfigDict(extra="forbid")

    error: str
    message: str
    type: str


class KokoroError(BaseModel):
    """The envelope of every error of Kokoro's route."""

    model_config = ConfigDict(extra="forbid")

    detail: KokoroErrorBody


def answers_with(media_type: str, description: str, content: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """Returns the description of what a route answers with."""
    return {200: {"description": description, "content": {media_type: content}}}


@router.post(
    CAPTIONED,
    openapi_extra=takes(kokoro.CaptionedBody),
    response_class=Response,
    responses={
        **answers_with("application/json", "audio with times of words; streamed: an object a line", {}),
        "default": {"model": KokoroError, "description": "any error"},
    },
)
@requires(Scope.SPEECH, stream=True)
async def captioned(request: Request, services: RequestServices) -> Response:
    return SpeechResponse(request, services, kokoro.speech_values, writer=kokoro.CaptionedWriter)


@requires(Scope.SPEECH, stream=True)
async def speak_as_piper(request: Request, services: RequestServices) -> Response:
    query = dict(request.query_params)
    if request.method == "POST":
        if media_type_of(request) not in ("text/plain", ""):
            return SpeechResponse(request, services, piper.speech_values)
        raw = b"".join([piece async for piece in services.bodies.pieces(request, services.speech.limits.max_body_bytes)])
        if raw.lstrip().startswith(b"{"):  # of newer clients that do not name its type
            return SpeechResponse(with_json(request, raw), services, piper.speech_values)
        query["text"] = raw.decode(errors="replace")
    return SpeechResponse(with_json(request, b"{}"), services, partial(piper.speech_values, query=query))


def with_json(request: Request, raw: bytes) -> Request:
    """Returns a request as one with this body, in JSON."""

    async def receive() -> Message:
        return {"type": "http.request", "body": raw}

    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    return Request({**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}, receive)


AS_PIPER: dict[str, Any] = {
    "response_class": Response,
    "responses": {**answers_with("audio/wav", "the audio", BYTES), **REFUSED},
}
SCHEMAS = piper.PiperBody.model_json_schema()["properties"].items()
QUERY = [{"name": name, "in": "query", "required": name == "text", "schema": schema} for name, schema in SCHEMAS]
POSTED, GOT = takes(piper.PiperBody), {"parameters": QUERY}
for path in (piper.PATH, f"{piper.PATH}/"):
    router.get(path, openapi_extra=GOT, include_in_schema=path == piper.PATH, **AS_PIPER)(speak_as_piper)
for path in (piper.PATH, f"{piper.PATH}/", f"{piper.PATH}/synthesize"):
    router.post(path, openapi_extra=POSTED, include_in_schema=path == piper.PATH, **AS_PIPER)(speak_as_piper)


@router.get(f"{piper.PATH}/voices")
@listing
async def voices_of_piper(services: RequestServices) -> dict[str, Any]:
    return piper.voice_configs(services.voices.library.list(), services.speech.models)


@router.post(
    vapi.PATH,
    openapi_extra=takes(vapi.VapiBody),
    response_class=Response,
    responses={**answers_with("application/octet-stream", "16-bit samples without a header", BYTES), **REFUSED},
)
@requires(Scope.SPEECH, stream=True)
async def speak_to_vapi(request: Request, services: RequestServices) -> Response:
    translate = partial(vapi.speech_values, query=request.query_params)
    return SpeechResponse(request, services, translate, lambda job: {"Content-Type": "application/octet-stream"})
