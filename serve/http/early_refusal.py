"""Early refusal: a full replica says so before Serve has begun with the request.

In:    heads of requests for speech
Out:   what speech_response.py would answer while every place is taken, for a third of the work; everything else goes on
Owns:  nothing
Never: bodies; an answer to somebody the gate would turn away, who hears it from the gate

A burst is refused one after the other by one process: what each costs is what the last one waits for.
"""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.errors import SynthesisError
from serve.access.authentication import need
from serve.errors import ApiError, to_api_error
from serve.http.services import Services
from serve.observability.reply_stats import Outcome, ReplyStats

METHOD, PATH = "POST", "/v1/audio/speech"


class EarlyRefusal:
    """ASGI middleware outside Serve's own server."""

    def __init__(self, app: ASGIApp, *, services: Callable[[], Services | None]) -> None:
        """Args:
        services: the ingress replica of this process; None where there is none.
        """
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services() if is_speech(scope) else None
        if services is None or not services.admission.is_full:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "origin" in headers:  # a page needs CORS headers to read why
            await self._app(scope, receive, send)
            return
        try:
            services.authenticator.caller_key(METHOD, PATH, need(METHOD, PATH), scope, headers)
            services.admission.check()
        except ApiError:
            await self._app(scope, receive, send)
        except SynthesisError as error:
            refusal, request_id = to_api_error(error), headers.get("x-request-id", "")
            reply = JSONResponse(
                refusal.body(request_id), refusal.spec.status, {"X-Request-ID": request_id, **refusal.reply_headers()}
            )
            await reply(scope, receive, send)
            services.observer.finished(ReplyStats(Outcome.REFUSED, refusal.spec.code))
            services.refusals.add(refusal.spec.code)


def is_speech(scope: Scope) -> bool:
    """Whether somebody wants to hear something; the path begins with the application's."""
    return scope["type"] == "http" and scope["method"] == METHOD and str(scope["path"]).endswith(PATH)
