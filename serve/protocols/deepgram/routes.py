"""Deepgram: the routes of Deepgram's protocol for speech, each a translation of one of the service's own.

In:    HTTP, WebSockets
Out:   audio and messages as Deepgram's clients read them
"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from pipeline.voices.voice_names import display_name
from serve.access.api_keys import Scope
from serve.access.single_use_tokens import TTL_S
from serve.errors import bad_request
from serve.http.conversation_socket import ConversationSocket
from serve.http.dependencies import RequestServices, shared_route
from serve.http.middleware import caller_of, request_id_of
from serve.http.openapi import takes
from serve.http.route_access import any_key, requires
from serve.http.services import Services
from serve.http.speech_response import SpeechResponse
from serve.protocols.deepgram.flux_session import FluxSession
from serve.protocols.deepgram.protocol import FLUX_PATH, GRANT_PATH, PATH, PROTOCOL
from serve.protocols.deepgram.session import DeepgramSession
from serve.protocols.deepgram.translation import GrantBody, SpeakBody, model_uuid, speech_values
from serve.protocols.openai.routes.speech import AUDIO
from serve.speech.job import SpeechJob
from serve.speech.schemas.base import read_body

GRANTED_S = 30.0
"""how long a token lives whose client does not say it"""

router = APIRouter()


class DeepgramError(BaseModel):
    """The envelope of every error of these routes. `err_msg` never repeats what the client sent."""

    model_config = ConfigDict(extra="forbid")

    err_code: str
    err_msg: str
    request_id: str


REFUSED: dict[int | str, dict[str, Any]] = {"default": {"model": DeepgramError, "description": "any error"}}


@router.post(FLUX_PATH, openapi_extra=takes(SpeakBody), response_class=Response, responses={**AUDIO, **REFUSED})
@router.post(PATH, openapi_extra=takes(SpeakBody), response_class=Response, responses={**AUDIO, **REFUSED})
@requires(Scope.SPEECH, stream=True)
async def speak(request: Request, services: RequestServices) -> Response:
    return SpeechResponse(request, services, partial(speech_values, query=request.query_params), reply_names)


@router.post(GRANT_PATH, openapi_extra=takes(GrantBody), responses=REFUSED)
@requires(Scope.SPEECH)
async def grant(request: Request, services: RequestServices) -> dict[str, str | float]:
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    body = await services.bodies.read_json(request, partial(read_body, GrantBody)) if has_body else GrantBody()
    ttl_s = min(body.ttl_seconds or GRANTED_S, TTL_S)
    return {"access_token": services.authenticator.token_of(caller_of(request).id, ttl_s), "expires_in": ttl_s}


@any_key
async def models(services: RequestServices) -> dict[str, Any]:
    return {"stt": [], "tts": voices_of(services)}


@any_key
async def model(uuid: str, services: RequestServices) -> dict[str, Any]:
    voice = next((card for card in voices_of(services) if card["uuid"] == uuid), None)
    if voice is None:
        raise bad_request("model_not_found", "no such model; GET /v1/models lists them", status=404)
    return voice


def voices_of(services: Services) -> list[dict[str, Any]]:
    """Returns all voices that have a name, which are the models of this protocol."""
    selector = services.speech.models
    return [
        {
            "name": info.title or info.name,
            "canonical_name": info.name,
            "architecture": selector.ids[0],
            "languages": list(info.languages or selector.languages()),
            "version": selector.ids[0],
            "uuid": model_uuid(info.name, selector.ids[0]),
        }
        for info in services.voices.library.list()
    ]


for path, listed in (("/v1/models", models), ("/v1/models/{uuid}", model)):
    router.add_api_route(path, listed, include_in_schema=False, route_class_override=shared_route(PROTOCOL))


@router.websocket(PATH)
@requires(Scope.SPEECH, stream=True)
async def converse(socket: WebSocket) -> None:
    await _converse(socket, DeepgramSession)


@router.websocket(FLUX_PATH)
@requires(Scope.SPEECH, stream=True)
async def converse_flux(socket: WebSocket) -> None:
    await _converse(socket, FluxSession)


async def _converse(socket: WebSocket, kind: type[DeepgramSession] | type[FluxSession]) -> None:
    """Serves a socket until either side closes it."""
    services: Services = socket.app.state.get_services()
    session = kind(socket.query_params, services.conversations.config, request_id_of(socket))
    await ConversationSocket(socket, services, session).converse()


def reply_names(job: SpeechJob) -> dict[str, str]:
    """Returns the headers in which Deepgram's clients look for the id, the voice and the characters of a reply."""
    voice = display_name(job.request.voice)
    return {
        "dg-request-id": job.request.request_id,
        "dg-model-name": voice,
        "dg-model-uuid": model_uuid(voice, job.request.model),
        "dg-char-count": str(job.characters),
    }
