"""Error reply: the one place where an error becomes a JSON response.

In:    an exception, the request's id
Out:   a response in OpenAI's envelope, with the headers that clients rely on
Owns:  nothing
Never: the decision which status an error has (serve/errors.py)
"""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from serve.errors import to_api_error


def error_reply(error: BaseException, request_id: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Returns the response to `error`; `headers` come on top of the error's own and replace those of the same name."""
    refusal = to_api_error(error)
    own = {name.lower(): value for name, value in refusal.reply_headers().items()}
    return JSONResponse(refusal.body(request_id), refusal.spec.status, own | dict(headers or {}))


def named_error_reply(error: BaseException, request_id: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Returns the response to `error` with an X-Request-ID, for middleware outside the one that sets it."""
    return error_reply(error, request_id, {"x-request-id": request_id, **(headers or {})})
