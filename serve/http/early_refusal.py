"""Early refusal: a full replica refuses speech before Serve handles the request.

In:    headers of requests for speech
Out:   the reply that the route would give while the replica is full, for a third of the work; other requests pass through
Owns:  nothing
Never: bodies; a reply to a request without access, which AuthMiddleware refuses

One process refuses a burst one request after the other, so the cost of each adds to the wait of the last.
"""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.errors import SynthesisError
from serve.errors import ApiError, to_api_error
from serve.http.error_reply import named_error_reply
from serve.http.middleware import peer_of
from serve.http.route_access import SPEECH
from serve.http.services import Services
from serve.observability.reply_stats import Outcome, ReplyStats

METHOD, PATH = "POST", "/v1/audio/speech"


class EarlyRefusal:
    """ASGI middleware around Serve's own HTTP server."""

    def __init__(self, app: ASGIApp, *, services: Callable[[], Services | None]) -> None:
        """Args:
        services: the ingress replica of this process; None where there is none.
        """
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services() if is_speech(scope) else None
        if services is None or not services.speech.admission.is_full:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "origin" in headers:  # a page needs CORS headers to read why
            await self._app(scope, receive, send)
            return
        try:
            services.authenticator.authenticate(headers, peer_of(scope), SPEECH.scopes, opens_page=False)
            services.speech.admission.check()
        except ApiError:
            await self._app(scope, receive, send)
        except SynthesisError as error:
            await named_error_reply(error, headers.get("x-request-id", ""))(scope, receive, send)
            code = to_api_error(error).spec.code
            services.speech.observer.finished(ReplyStats(Outcome.REFUSED, code))
            services.speech.refusals.add(code)


def is_speech(scope: Scope) -> bool:
    """True for POST /v1/audio/speech below any route prefix."""
    return scope["type"] == "http" and scope["method"] == METHOD and str(scope["path"]).endswith(PATH)
