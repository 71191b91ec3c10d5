"""Speech: the route that synthesises a text.

In:    HTTP
Out:   audio, or its events
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from serve.access.api_keys import Scope
from serve.http.dependencies import RequestServices
from serve.http.openapi import AUDIO_TYPES, answers, takes
from serve.http.route_access import requires
from serve.http.speech_response import SpeechResponse
from serve.speech.schemas.speech import SpeechBody

router = APIRouter()

AUDIO: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the audio, or with stream_format sse its events",
        "content": {
            **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in AUDIO_TYPES},
            "text/event-stream": {},  # each event is a JSON object; README names them
        },
    },
    206: {"description": "the rest of a reply that was lost: X-Resume or Idempotency-Key, with Range"},
}


@router.post(
    "/v1/audio/speech",
    openapi_extra=takes(SpeechBody),
    response_class=Response,
    responses={**AUDIO, **answers(400, 401, 403, 404, 408, 409, 412, 413, 415, 416, 422, 429, 500, 503, 504)},
)
@requires(Scope.SPEECH, stream=True)
async def speech(request: Request, services: RequestServices) -> Response:
    return SpeechResponse(request, services)


# Azure's clients have the model in the body, and most of them in the path too.
for path in ("v1/audio/speech", "v1/deployments/{model}/audio/speech", "deployments/{model}/audio/speech"):
    router.add_api_route(f"/openai/{path}", speech, methods=["POST"], include_in_schema=False)
