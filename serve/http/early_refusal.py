"""Early refusal: a full replica says so before Serve has begun with the request.

In:    heads of requests for speech
Out:   what speech_response.py would answer while every place is taken, for a third of the work; everything else goes on
Owns:  nothing
Never: bodies; an answer to somebody the gate would turn away, who hears it from the gate

A burst is refused one after the other by one process: what each costs is what the last one waits for.
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
            services.authenticator.authenticate(headers, peer_of(scope), SPEECH.scopes, opens_page=False)
            services.admission.check()
        except ApiError:
            await self._app(scope, receive, send)
        except SynthesisError as error:
            await named_error_reply(error, headers.get("x-request-id", ""))(scope, receive, send)
            code = to_api_error(error).spec.code
            services.observer.finished(ReplyStats(Outcome.REFUSED, code))
            services.refusals.add(code)


def is_speech(scope: Scope) -> bool:
    """Whether somebody wants to hear something; the path begins with the application's."""
    return scope["type"] == "http" and scope["method"] == METHOD and str(scope["path"]).endswith(PATH)
