"""Early refusal: a full replica refuses speech before Serve handles the request.

In:    headers of requests for speech
Out:   the reply that the route would give while the replica is full, for a third of the work; other requests pass through
Owns:  nothing
Never: bodies; the decision, which is the replica's (speech_gate.py); an import that Serve's proxy would have to hold

One process refuses a burst one request after the other, so the cost of each adds to the wait of the last.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.errors import SynthesisError
from serve.http.error_reply import named_error_reply
from serve.http.sender import peer_of

METHOD, PATH = "POST", "/v1/audio/speech"


class Gate(Protocol):
    """A replica that may refuse."""

    async def refusal(self, headers: Headers, peer: str) -> SynthesisError | None:
        """Returns why speech is refused now; None: the route answers."""
        ...

    def passing(self) -> AbstractContextManager[None]:
        """Counts a request that the route answers, until it is answered."""
        ...


class EarlyRefusal:
    """ASGI middleware around Serve's own HTTP server."""

    def __init__(self, app: ASGIApp, *, gate: Callable[[], Gate | None]) -> None:
        """Args:
        gate: that of the ingress replica of this process; None where there is none.
        """
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gate = self._gate() if is_speech(scope) else None
        if gate is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = await gate.refusal(headers, peer_of(scope))
        if refusal is not None:
            await named_error_reply(refusal, headers.get("x-request-id", ""))(scope, receive, send)
            return
        with gate.passing():
            await self._app(scope, receive, send)


def is_speech(scope: Scope) -> bool:
    """True for POST /v1/audio/speech below any route prefix."""
    return scope["type"] == "http" and scope["method"] == METHOD and str(scope["path"]).endswith(PATH)
