"""Error envelope: turns Serve's refusals in plain text into errors like all others.

In:    Serve's own HTTP server, around which serve/http/proxy_middleware.py puts this
Out:   the same replies; an error in plain text, or an uncaught exception, in the envelope of its path
Owns:  nothing
Never: Serve's own pages below /-/, which its tools read; a reply that has begun
"""

import logging

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError, ErrorSpec, plain_status
from serve.http.error_reply import named_error_reply, path_in

LOG = logging.getLogger("ray.serve.chattts")

KEPT = ("retry-after", "x-request-id")


class ErrorEnvelope:
    """ASGI middleware that turns errors in plain text into JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].removeprefix(scope.get("root_path", "")).startswith("/-/"):
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id", "")
        has_begun = is_replaced = False

        async def send_json(message: Message) -> None:
            nonlocal has_begun, is_replaced
            if message["type"] == "http.response.start":
                has_begun = True
                is_replaced = is_plain_error(message)
                if is_replaced:
                    headers = Headers(raw=message["headers"])
                    kept = {name: headers[name] for name in KEPT if name in headers}
                    await named_error_reply(refusal_of(message["status"]), request_id, kept, path=path_in(scope))(
                        scope, receive, send
                    )
            if not is_replaced:
                await send(message)

        try:
            await self._app(scope, receive, send_json)
        except Exception as error:
            if has_begun:
                raise
            LOG.exception("request=%s ended by an error outside the application", request_id)
            await named_error_reply(error, request_id, path=path_in(scope))(scope, receive, send)


def is_plain_error(start: Message) -> bool:
    """True if the reply is an error in plain text."""
    return start["status"] >= 400 and Headers(raw=start["headers"]).get("content-type", "text/plain").startswith("text/plain")


def refusal_of(status: int) -> ApiError:
    """Returns the error that a status of Serve stands for."""
    if status in (429, 503):
        return ApiError(
            "the service takes no more requests right now", ErrorSpec(status, "overloaded_error", "overloaded", True, 1.0)
        )
    if status in (408, 504):
        return ApiError("the request took longer than it may", ErrorSpec(status, "server_error", "timeout", True))
    if status >= 500:
        return ApiError(
            "an internal error; its request_id finds it in the log", ErrorSpec(status, "server_error", "internal_error", True)
        )
    return plain_status(status)
