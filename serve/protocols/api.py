"""API: the whole HTTP surface put together: middleware, routers and error handlers.

In:    the provider of the services
Out:   a FastAPI application; every error in the envelope of its path, every reply with its X-Request-ID
Never: what happens behind the Services
"""

from collections.abc import Callable
from importlib import import_module

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.errors import SynthesisError
from serve.errors import ApiError, bad_request, plain_status
from serve.http import uvicorn_protocols
from serve.http.about import NAME, version
from serve.http.error_reply import error_reply
from serve.http.middleware import AuthMiddleware, CrossOriginMiddleware, RequestIdMiddleware, request_id_of
from serve.http.openapi import describe
from serve.http.protocol import path_in
from serve.http.route_access import RouteAccessTable
from serve.http.services import Services
from serve.http.stalled_readers import StalledReaders
from serve.protocols.registry import PROTOCOLS

OWN = (
    *("serve.http.routes.cache", "serve.http.routes.source", "serve.http.routes.health", "serve.page.routes"),
    "serve.protocols.mcp.routes",
)
"""modules of the routes that belong to no protocol"""
ROUTERS: tuple[APIRouter, ...] = tuple(
    import_module(name).router for name in (*(name for protocol in PROTOCOLS for name in protocol.routers), *OWN)
)

GONE = ("/v1/files", "/v1/batches")
"""paths of OpenAI's batches, which has none of speech"""
INSTEAD = (
    "this service has no files and no batches: POST /v1/audio/jobs speaks long texts in the background, "
    "POST /v1/audio/speech/batch up to 32 short ones in one call"
)
DOCUMENT = "/openapi.json"
CLIENT_CLOSED_REQUEST = 499  # nginx's: the client left before its body was complete, and reads no reply


def create_api(get_services: Callable[[], Services], *, announce_request_id: bool = True) -> FastAPI:
    """Returns the application.

    Args:
        get_services: called by each request; the services may be built after the routes are.
        announce_request_id: False where the server in front sends X-Request-ID itself, as Serve does.
    """
    uvicorn_protocols.install()
    api = FastAPI(title=NAME, version=version(), docs_url=None, openapi_url=DOCUMENT, redoc_url=None, redirect_slashes=False)
    api.state.get_services = get_services
    api.add_middleware(
        AuthMiddleware,
        routes=route_access(),
        protocols=PROTOCOLS,
        authenticator=lambda: get_services().authenticator,
        observer=lambda: get_services().speech.observer,
    )
    api.add_middleware(CrossOriginMiddleware, policy=lambda: get_services().authenticator.origins)
    api.add_middleware(RequestIdMiddleware, announce=announce_request_id)
    api.add_middleware(StalledReaders, limit_s=lambda: get_services().speech.limits.stall_timeout_s)
    for router in ROUTERS:
        api.include_router(router)
    api.router.default = no_socket(api.router.default)
    describe(api)
    api.add_exception_handler(ClientDisconnect, on_disconnect)
    api.add_exception_handler(HTTPException, on_router_error)
    api.add_exception_handler(RequestValidationError, on_invalid_parameter)
    for kind in (ApiError, SynthesisError, Exception):
        api.add_exception_handler(kind, on_error)
    return api


def route_access() -> RouteAccessTable:
    """Returns what every route requires, as the handlers declare it."""
    return RouteAccessTable((route for router in ROUTERS for route in router.routes), open_paths=(DOCUMENT,))


def no_socket(otherwise: ASGIApp) -> ASGIApp:
    """Returns what answers where there is no route: a 404 also for a WebSocket, which would be refused like a wrong key."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            refusal, request_id = plain_status(404), str(scope["state"]["request_id"])
            await error_reply(refusal, request_id, protocol=PROTOCOLS.of_unknown(scope))(scope, receive, send)
        else:
            await otherwise(scope, receive, send)

    return answer


async def on_error(request: Request, error: Exception) -> Response:
    """Replies to an error of the domain, a refusal, or a defect."""
    return error_reply(error, request_id_of(request), protocol=PROTOCOLS.of(request.scope))


async def on_router_error(request: Request, error: Exception) -> Response:
    """Replies to what the router refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)
    path = path_in(request.scope)
    if any(path == gone or path.startswith(f"{gone}/") for gone in GONE):
        return await on_error(request, ApiError(INSTEAD, plain_status(404).spec))
    protocol = PROTOCOLS.of_unknown(request.scope) if error.status_code == 404 else PROTOCOLS.of(request.scope)
    return error_reply(plain_status(error.status_code, error.headers), request_id_of(request), protocol=protocol)


async def on_invalid_parameter(request: Request, error: Exception) -> Response:
    """Replies to a path or query parameter of the wrong type."""
    return await on_error(request, bad_request("invalid_request", "a path or query parameter is not valid"))


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Ends a request whose client left while its body was being read."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)
