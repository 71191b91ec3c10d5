"""ElevenLabs: the routes of ElevenLabs' protocol, each a translation of one of the service's own.

In:    HTTP, WebSockets
Out:   audio, JSON and messages as ElevenLabs' clients read them
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

from pipeline.errors import InvalidRequest
from pipeline.voices.catalogue import VoiceInfo
from pipeline.voices.library import VoiceLibrary
from serve.access.api_keys import Scope
from serve.errors import bad_request
from serve.http.connection import Connection
from serve.http.conversation_socket import ConversationSocket
from serve.http.dependencies import RequestServices, shared_route
from serve.http.ignored_fields import ignored_header
from serve.http.middleware import request_id_of
from serve.http.openapi import takes
from serve.http.route_access import any_key, requires
from serve.http.services import Services
from serve.http.speech_response import SpeechResponse
from serve.http.speech_writers import SpeechWriter
from serve.protocols.elevenlabs.cards import SETTINGS, model_cards, page_of, voice_card
from serve.protocols.elevenlabs.protocol import PROTOCOL
from serve.protocols.elevenlabs.session import ElevenLabsSession
from serve.protocols.elevenlabs.timed_writers import LinesWriter, WholeTimedWriter
from serve.protocols.elevenlabs.translation import TextToSpeechBody, speech_values
from serve.protocols.openai.routes.speech import AUDIO
from serve.speech.job import SpeechJob

MOST_VOICE_IDS = 100
"""that a request names, as there: each is looked for among all voices"""

router = APIRouter()

WITH_TIMES: dict[int | str, dict[str, Any]] = {
    200: {"description": "audio with times of characters; streamed: an object a line", "content": {"application/json": {}}}
}


class ElevenLabsErrorBody(BaseModel):
    """An error. `message` never repeats what the client sent."""

    model_config = ConfigDict(extra="forbid")

    status: str
    message: str
    request_id: str


class ElevenLabsError(BaseModel):
    """The envelope of every error of these routes."""

    model_config = ConfigDict(extra="forbid")

    detail: ElevenLabsErrorBody


REFUSED: dict[int | str, dict[str, Any]] = {"default": {"model": ElevenLabsError, "description": "any error"}}
SPEAKS: dict[str, Any] = {"openapi_extra": takes(TextToSpeechBody), "response_class": Response}


@router.post("/v1/text-to-speech/{name}", responses={**AUDIO, **REFUSED}, **SPEAKS)
@requires(Scope.SPEECH, stream=True)
async def whole(name: str, request: Request, services: RequestServices) -> Response:
    return spoken(name, request, services, stream=False)


@router.post("/v1/text-to-speech/{name}/stream", responses={**AUDIO, **REFUSED}, **SPEAKS)
@requires(Scope.SPEECH, stream=True)
async def stream(name: str, request: Request, services: RequestServices) -> Response:
    return spoken(name, request, services, stream=True)


@router.post("/v1/text-to-speech/{name}/with-timestamps", responses={**WITH_TIMES, **REFUSED}, **SPEAKS)
@requires(Scope.SPEECH, stream=True)
async def whole_with_times(name: str, request: Request, services: RequestServices) -> Response:
    return spoken(name, request, services, stream=False, writer=WholeTimedWriter)


@router.post("/v1/text-to-speech/{name}/stream/with-timestamps", responses={**WITH_TIMES, **REFUSED}, **SPEAKS)
@requires(Scope.SPEECH, stream=True)
async def stream_with_times(name: str, request: Request, services: RequestServices) -> Response:
    return spoken(name, request, services, stream=True, writer=LinesWriter)


@router.get("/v1/voices", responses=REFUSED)
@any_key
async def voices(services: RequestServices) -> dict[str, Any]:
    return {"voices": cards(services)}


@router.get("/v2/voices", responses=REFUSED)
@any_key
async def voices_page(request: Request, services: RequestServices) -> Response:
    query, library = request.query_params, services.voices.library
    asked_for = {name for value in query.getlist("voice_ids") for name in value.split(",")}
    if len(asked_for) > MOST_VOICE_IDS:
        raise bad_request("out_of_range", f"voice_ids are at most {MOST_VOICE_IDS}", param="voice_ids")
    names = {info.name for name in asked_for for info in infos_of(name, library)} if asked_for else None
    page, ignored = page_of(library.list(), services.speech.models, query, names)
    return JSONResponse(page, headers={"X-Ignored-Fields": ignored_header(ignored)} if ignored else {})


@router.get("/v1/voices/settings/default", responses=REFUSED)
@any_key
async def default_settings() -> dict[str, Any]:
    return dict(SETTINGS)


@router.get("/v1/voices/{name}", responses=REFUSED)
@any_key
async def voice(name: str, services: RequestServices) -> dict[str, Any]:
    return card_of(name, services)


@router.get("/v1/voices/{name}/settings", responses=REFUSED)
@any_key
async def settings(name: str, services: RequestServices) -> dict[str, Any]:
    values: dict[str, Any] = card_of(name, services)["settings"]
    return values


@router.get("/elevenlabs/v1/models", responses=REFUSED)
@any_key
async def models(services: RequestServices) -> list[dict[str, Any]]:
    return model_cards(services.speech.models, services.speech.limits)


router.add_api_route("/v1/models", models, include_in_schema=False, route_class_override=shared_route(PROTOCOL))


@router.websocket("/v1/text-to-speech/{name}/stream-input")
@requires(Scope.SPEECH, stream=True)
async def stream_input(socket: WebSocket, name: str) -> None:
    await converse(socket, name, has_contexts=False)


@router.websocket("/v1/text-to-speech/{name}/multi-stream-input")
@requires(Scope.SPEECH, stream=True)
async def multi_stream_input(socket: WebSocket, name: str) -> None:
    await converse(socket, name, has_contexts=True)


async def converse(socket: WebSocket, name: str, *, has_contexts: bool) -> None:
    """Serves one of the sockets until either side closes it."""
    services: Services = socket.app.state.get_services()
    config, request_id = services.conversations.config, request_id_of(socket)
    session = ElevenLabsSession(name, socket.query_params, config, request_id, has_contexts=has_contexts)
    await ConversationSocket(socket, services, session).converse()


def spoken(
    name: str, request: Request, services: Services, *, stream: bool, writer: Callable[[Connection], SpeechWriter] | None = None
) -> Response:
    """Returns the reply to a text; `writer` is one that writes times."""
    query, timed = request.query_params, writer is not None
    translate = partial(speech_values, voice=name, query=query, stream=stream, timed=timed)
    return SpeechResponse(request, services, translate, reply_names, writer)


def reply_names(job: SpeechJob) -> dict[str, str]:
    """Returns the headers in which ElevenLabs' clients look for the id and the cost of a reply [characters]."""
    return {"request-id": job.request.request_id, "character-cost": str(job.characters)}


def cards(services: Services) -> list[dict[str, Any]]:
    """Returns all voices that have a name."""
    return [voice_card(info, services.speech.models) for info in services.voices.library.list()]


def card_of(name: str, services: Services) -> dict[str, Any]:
    """Returns a voice that is listed, by any of its names.

    Raises:
        UnknownVoice, ApiError
    """
    services.voices.library.canonical(name)
    infos = infos_of(name, services.voices.library)
    if not infos:
        raise bad_request("voice_not_found", "no voice of that id is listed; GET /v1/voices lists them", status=404)
    return voice_card(infos[0], services.speech.models)


def infos_of(name: str, library: VoiceLibrary) -> list[VoiceInfo]:
    """Returns the voice that is listed, by any of its names; nothing if there is none."""
    if (stored := library.find(name)) is not None:
        return [library.info(stored)]
    with suppress(InvalidRequest):
        canonical = library.canonical(name)
        return [info for info in library.catalogue.list() if info.name == canonical]
    return []
