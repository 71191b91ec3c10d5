"""API: the routes.

In:    HTTP
Out:   HTTP; every error in OpenAI's envelope, every reply with its X-Request-ID
Owns:  nothing
Never: Ray, torch, what happens behind the Services
"""

import importlib.metadata
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.audio.formats import CONTAINERS
from pipeline.errors import SynthesisError
from serve.access.authentication import AuthMiddleware
from serve.access.cross_origin import CrossOrigin
from serve.errors import ApiError, bad_request, plain_status, to_api_error
from serve.http.openapi import AUDIO_TYPES, answers, describe, takes
from serve.http.routes.cache import cache_routes
from serve.http.routes.source import source_routes
from serve.http.routes.text import text_routes
from serve.http.routes.voices import add_voice_routes
from serve.http.services import Services
from serve.http.speech_response import SpeechResponse
from serve.speech.model_selection import ModelSelector
from serve.speech.schemas.speech import SpeechBody

NAME = "chattts-serve"
PAGE = Path(__file__).with_name("page.html")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

AUDIO: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the audio, or with stream_format sse its events",
        "content": {
            **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in AUDIO_TYPES},
            "text/event-stream": {},  # each event is a JSON object; README names them
        },
    }
}


def create_api(get_services: Callable[[], Services], *, announce_request_id: bool = True) -> FastAPI:
    """The whole HTTP surface.

    Args:
        get_services: called by each request; the services may be built after the routes are.
        announce_request_id: False where the server in front sends X-Request-ID itself, as Serve does.
    """
    api = FastAPI(title=NAME, version=version(), docs_url="/docs", redoc_url=None, redirect_slashes=False)
    api.add_middleware(AuthMiddleware, gate=lambda: (get_services().authenticator, get_services().observer))
    api.add_middleware(CrossOrigin, policy=lambda: get_services().authenticator.origins)
    api.add_middleware(RequestIdMiddleware, announce=announce_request_id)
    page = PAGE.read_text(encoding="utf-8")

    api.include_router(text_routes(get_services))

    @api.post(
        "/v1/audio/speech",
        openapi_extra=takes(SpeechBody),
        response_class=Response,
        responses={**AUDIO, **answers(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)},
    )
    async def speech(request: Request) -> Response:
        return SpeechResponse(request, get_services(), request_id_of(request))

    add_voice_routes(api, get_services)
    api.include_router(cache_routes(get_services))
    api.include_router(source_routes(get_services, NAME, version()))

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        desk = get_services().models
        return {"object": "list", "data": [model_card(name, desk) for name in desk.ids]}

    @api.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        desk = get_services().models
        if name not in desk.ids:
            error = plain_status(404)
            error.message = "no such model; GET /v1/models lists them"
            raise error
        return model_card(name, desk)

    @api.get("/live")
    async def live() -> dict[str, str]:
        return {"status": "live"}

    @api.get("/ready")
    async def ready() -> Response:
        reason = await get_services().why_not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not_ready", "reason": reason}, 503, {"Retry-After": "2"})

    @api.get("/health")
    async def health() -> dict[str, Any]:
        services = get_services()
        admission = {
            "in_flight": services.admission.in_flight,
            "capacity": services.admission.capacity,
            "mean_duration_s": round(services.admission.mean_duration_s, 3),
            "receiving": services.bodies.arriving,
        }
        return {"name": NAME, "version": version(), "admission": admission, **await services.health()}

    @api.get("/", response_class=Response)
    async def front(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(page)
        return JSONResponse({"name": NAME, "version": version(), "formats": list(CONTAINERS), "source": "/source"})

    async def refuse(request: Request, error: Exception) -> Response:
        refusal = to_api_error(error)
        return JSONResponse(refusal.body(request_id_of(request)), refusal.spec.status, refusal.reply_headers())

    async def refuse_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await refuse(request, plain_status(error.status_code, error.headers))

    async def refuse_parameters(request: Request, error: Exception) -> Response:
        return await refuse(request, bad_request("invalid_request", "a path or query parameter is not valid"))

    async def forget(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # the client left before its body was complete: nobody reads this

    describe(api)
    api.add_exception_handler(ClientDisconnect, forget)
    api.add_exception_handler(ApiError, refuse)
    api.add_exception_handler(SynthesisError, refuse)
    api.add_exception_handler(HTTPException, refuse_route)
    api.add_exception_handler(RequestValidationError, refuse_parameters)
    api.add_exception_handler(Exception, refuse)
    return api


class RequestIdMiddleware:
    """Gives every request an id: the client's own when it is harmless, else a new one."""

    def __init__(self, app: ASGIApp, *, announce: bool) -> None:
        self._app = app
        self._announce = announce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = safe_request_id(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if self._announce and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        await self._app(scope, receive, send_named)


def safe_request_id(claimed: str | None) -> str:
    """The claimed id if it can stand in a log and a header, else a new one."""
    return claimed if claimed is not None and REQUEST_ID.fullmatch(claimed) else uuid.uuid4().hex


def request_id_of(request: Request) -> str:
    """The id RequestIdMiddleware gave."""
    return str(request.state.request_id)


def version() -> str:
    """Of the installed package; a checkout that is not installed has none."""
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"


def model_card(name: str, desk: ModelSelector) -> dict[str, Any]:
    """OpenAI's shape, what may be done with the weights, and what they speak."""
    weights = desk.licence(name)
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "2Noise",
        "license": weights.name,
        "license_url": weights.url,
        "attribution": weights.attribution,
        "commercial_use": weights.commercial_use,
        "languages": list(desk.languages(name)),
        **desk.state(name),
    }
