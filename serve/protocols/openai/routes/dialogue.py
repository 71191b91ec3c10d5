"""Dialogue: the route that speaks what several speakers say.

In:    HTTP
Out:   audio, or its events; a zip of stems
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from serve.access.api_keys import Scope
from serve.http.dependencies import RequestServices
from serve.http.openapi import answers, takes
from serve.http.route_access import requires
from serve.protocols.openai.dialogue_response import DialogueResponse
from serve.protocols.openai.routes.speech import AUDIO
from serve.speech.schemas.dialogue_schemas import DialogueBody

router = APIRouter()

AUDIO_OR_ZIP: dict[int | str, dict[str, Any]] = {
    200: {**AUDIO[200], "content": {**AUDIO[200]["content"], "application/zip": {}}}
}


@router.post(
    "/v1/audio/dialogue",
    openapi_extra=takes(DialogueBody),
    response_class=Response,
    responses={**AUDIO_OR_ZIP, **answers(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)},
)
@requires(Scope.SPEECH, stream=True)
async def dialogue(request: Request, services: RequestServices) -> Response:
    return DialogueResponse(request, services)
