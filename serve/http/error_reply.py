"""Error reply: the one place where an error becomes a JSON response.

In:    an exception, the request's id
Out:   a response in OpenAI's envelope, or in that of another protocol on its paths, with the headers that clients rely on
Never: the decision which status an error has (serve/errors.py)
"""

from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import Scope

from serve.errors import to_api_error
from serve.http.deepgram import errors as deepgram
from serve.http.elevenlabs import errors as elevenlabs
from serve.http.neighbours import kokoro_errors as kokoro

NOT_STORED = {"cache-control": "no-store"}
"""of errors, and of all that needs a key: shared caches know no key but that of Authorization"""


def error_reply(
    error: BaseException, request_id: str, headers: Mapping[str, str] | None = None, *, path: str = ""
) -> JSONResponse:
    """Returns the response to `error`.

    Args:
        headers: on top of the error's own; they replace those of the same name.
        path: of the request, which decides about the envelope.
    """
    refusal = to_api_error(error)
    own = {**NOT_STORED, **{name.lower(): value for name, value in refusal.reply_headers().items()}, **(headers or {})}
    if elevenlabs.is_spoken_at(path):
        named = {"request-id": request_id, **own}
        return JSONResponse(elevenlabs.body_of(refusal, request_id), elevenlabs.status_of(refusal), named)
    if deepgram.is_spoken_at(path):
        named = {"dg-request-id": request_id, "dg-error": refusal.message, **own}
        return JSONResponse(deepgram.body_of(refusal, request_id), deepgram.status_of(refusal), named)
    body = kokoro.error_body(refusal) if path == kokoro.PATH else refusal.body(request_id)
    return JSONResponse(body, refusal.spec.status, own)


def named_error_reply(
    error: BaseException, request_id: str, headers: Mapping[str, str] | None = None, *, path: str = ""
) -> JSONResponse:
    """Returns the response to `error` with an X-Request-ID, for middleware outside the one that sets it."""
    return error_reply(error, request_id, {"x-request-id": request_id, **(headers or {})}, path=path)


def path_in(scope: Scope) -> str:
    """Returns the path of a request below the route prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"
