"""ElevenLabs dialogue: texts of several voices in one audio.

In:    HTTP, WebSockets
Out:   audio, with times where they are asked for
"""

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import Response

from serve.access.api_keys import Scope
from serve.http.connection import Connection
from serve.http.conversation_socket import ConversationSocket
from serve.http.dependencies import RequestServices
from serve.http.middleware import request_id_of
from serve.http.openapi import takes
from serve.http.route_access import requires
from serve.http.services import Services
from serve.http.speech_response import SpeechResponse
from serve.http.speech_writers import SpeechWriter
from serve.protocols.elevenlabs.dialogue import DialogueBody, dialogue_values
from serve.protocols.elevenlabs.dialogue_session import DialogueSession
from serve.protocols.elevenlabs.routes import REFUSED, WITH_TIMES, reply_names
from serve.protocols.elevenlabs.timed_writers import LinesWriter, WholeTimedWriter
from serve.protocols.openai.routes.speech import AUDIO

router = APIRouter()


@router.post("/v1/text-to-dialogue", openapi_extra=takes(DialogueBody), response_class=Response, responses={**AUDIO, **REFUSED})
@requires(Scope.SPEECH, stream=True)
async def dialogue(request: Request, services: RequestServices) -> Response:
    return spoken(request, services, stream=False)


@router.post(
    "/v1/text-to-dialogue/stream", openapi_extra=takes(DialogueBody), response_class=Response, responses={**AUDIO, **REFUSED}
)
@requires(Scope.SPEECH, stream=True)
async def stream(request: Request, services: RequestServices) -> Response:
    return spoken(request, services, stream=True)


@router.post(
    "/v1/text-to-dialogue/with-timestamps",
    openapi_extra=takes(DialogueBody),
    response_class=Response,
    responses={**WITH_TIMES, **REFUSED},
)
@requires(Scope.SPEECH, stream=True)
async def dialogue_with_times(request: Request, services: RequestServices) -> Response:
    return spoken(request, services, stream=False, writer=partial(WholeTimedWriter, has_turns=True))


@router.post(
    "/v1/text-to-dialogue/stream/with-timestamps",
    openapi_extra=takes(DialogueBody),
    response_class=Response,
    responses={**WITH_TIMES, **REFUSED},
)
@requires(Scope.SPEECH, stream=True)
async def stream_with_times(request: Request, services: RequestServices) -> Response:
    return spoken(request, services, stream=True, writer=partial(LinesWriter, has_turns=True))


@router.websocket("/v1/text-to-dialogue/multi-stream-input")
@requires(Scope.SPEECH, stream=True)
async def multi_stream_input(socket: WebSocket) -> None:
    """Serves the socket until either side closes it."""
    services: Services = socket.app.state.get_services()
    session = DialogueSession(socket.query_params, services.conversations.config, request_id_of(socket))
    await ConversationSocket(socket, services, session).converse()


def spoken(
    request: Request, services: Services, *, stream: bool, writer: Callable[[Connection], SpeechWriter] | None = None
) -> Response:
    """Returns the reply to a dialogue; `writer` is one that writes times."""
    translate = partial(dialogue_values, query=request.query_params, stream=stream, timed=writer is not None)
    return SpeechResponse(request, services, translate, reply_names, writer)
