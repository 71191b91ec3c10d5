"""ElevenLabs dialogue: texts of several voices in one audio.

In:    HTTP
Out:   audio
Owns:  nothing
Never: Ray, torch
"""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from serve.access.api_keys import Scope
from serve.errors import bad_request
from serve.http.dependencies import RequestServices
from serve.http.elevenlabs.dialogue import DialogueBody, dialogue_json
from serve.http.openapi import takes
from serve.http.route_access import requires
from serve.http.routes.elevenlabs import REFUSED, reply_names
from serve.http.routes.speech import AUDIO
from serve.http.services import Services
from serve.http.speech_response import SpeechResponse

router = APIRouter()

NO_TIMES = (
    "a dialogue has no alignment here: use the same route without with-timestamps, or POST /v1/audio/speech with SSML, whose "
    "segments name their voices"
)


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


@router.post("/v1/text-to-dialogue/with-timestamps", responses=REFUSED)
@router.post("/v1/text-to-dialogue/stream/with-timestamps", responses=REFUSED)
@requires(Scope.SPEECH)
async def with_timestamps() -> Response:
    raise bad_request("timestamps_not_supported", NO_TIMES)


def spoken(request: Request, services: Services, *, stream: bool) -> Response:
    """Returns the reply to a dialogue."""
    translate = partial(dialogue_json, query=request.query_params, voice_id=services.speech.voice_id, stream=stream)
    return SpeechResponse(request, services, translate, reply_names)
