"""Speech batch: several short texts in one call, in the shape of vLLM-Omni.

In:    HTTP
Out:   JSON with the audio of each, or why there is none
Never: another way to speak than a request alone has
"""

import asyncio
import base64
import json
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field

from pipeline.errors import SynthesisError
from serve.access.api_keys import Scope
from serve.errors import ApiError, bad_request, to_api_error
from serve.http.dependencies import RequestServices
from serve.http.openapi import answers, takes
from serve.http.request_context import context_of
from serve.http.route_access import requires
from serve.http.services import Services
from serve.http.speech_response import unless_the_client_leaves
from serve.speech.events import Audio
from serve.speech.job import RequestContext
from serve.speech.schemas.base import Body, read_body
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import ClientLeft, open_speech

router = APIRouter()

MOST = 32
PARALLEL = 4
NOT_OF_AN_ITEM = ("stream", "stream_format", "timestamps", "subtitles")
CLIENT_CLOSED_REQUEST = 499


class SpeechBatchBody(Body):
    """POST /v1/audio/speech/batch: fields of a request for speech, which all items share, and the items."""

    model_config = ConfigDict(extra="allow")

    items: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=MOST, description="fields of each; input among them")


@router.post(
    "/v1/audio/speech/batch", openapi_extra=takes(SpeechBatchBody), responses=answers(400, 401, 403, 408, 413, 415, 429, 503)
)
@requires(Scope.SPEECH, stream=True)
async def speech_batch(request: Request, services: RequestServices) -> Response:
    body = await services.bodies.read_json(request, partial(read_body, SpeechBatchBody))
    shared, context = body.model_extra or {}, context_of(request)
    if context.idempotency_key is not None:
        raise bad_request("conflicting_fields", "a batch has no Idempotency-Key: give each item a seed")
    results: list[dict[str, Any]] = []

    async def speak_all() -> None:
        places = asyncio.Semaphore(PARALLEL)

        async def speak_item(index: int, fields: dict[str, Any]) -> dict[str, Any]:
            async with places:
                own = replace(context, request_id=f"{context.request_id}.{index}")
                return {"index": index, **await _result(services, own, {**shared, **fields})}

        async with asyncio.TaskGroup() as group:  # an item that breaks ends the others
            items = [group.create_task(speak_item(index, fields)) for index, fields in enumerate(body.items)]
        results.extend(item.result() for item in items)

    try:
        await unless_the_client_leaves(request.receive, speak_all())
    except ClientLeft:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    succeeded = sum(result["status"] == "success" for result in results)
    counts = {"total": len(results), "succeeded": succeeded, "failed": len(results) - succeeded}
    return JSONResponse({"id": context.request_id, "results": results, **counts}, headers={"X-AI-Generated": "true"})


async def _result(services: Services, context: RequestContext, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the audio of one item, or its error."""
    try:
        field = next((name for name in NOT_OF_AN_ITEM if name in fields), None)
        if field is not None:
            raise bad_request("conflicting_fields", f"an item has no {field}: leave it out", param=field)
        body = read_body(SpeechBody, json.dumps({**fields, "stream": False}).encode())
        with open_speech(services.speech, context) as session:
            job = await session.accept(body)
            async with aclosing(session.speak(job)) as events:
                data = b"".join([event.data async for event in events if isinstance(event, Audio)])
    except (ApiError, SynthesisError) as error:
        return {"status": "error", **to_api_error(error).body(context.request_id)}
    audio = base64.b64encode(data).decode()
    return {"status": "success", "audio_data": audio, "media_type": job.audio.content_type, "seed": job.request.sampling.seed}
