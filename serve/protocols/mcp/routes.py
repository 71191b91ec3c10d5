"""MCP: the route of the Model Context Protocol, streamable HTTP without sessions.

In:    HTTP
Out:   JSON-RPC, by the protocol's official package
Never: the package before the first request: its import takes a second
"""

import asyncio
from importlib import import_module

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from serve.errors import ApiError, ErrorSpec
from serve.http.route_access import any_key

TOOLS = "serve.protocols.mcp.tools"
MISSING = "this service has no MCP: its operator installs the extra with pip install 'chattts-serve[mcp]'"

router = APIRouter()


class McpReply(Response):
    """Hands one request to the package."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = import_module(TOOLS).one_request()
        async with app.router.lifespan_context(app):
            state = {**scope["state"], "service": scope["app"]}
            await app({**scope, "path": "/mcp", "root_path": "", "state": state}, receive, send)


@router.post("/mcp", include_in_schema=False)
@any_key
async def mcp(request: Request) -> Response:
    try:
        await asyncio.to_thread(import_module, TOOLS)
    except ModuleNotFoundError:
        raise ApiError(MISSING, ErrorSpec(501, "invalid_request_error", "not_installed", False)) from None
    return McpReply()
