"""Error reply: the one place where an error becomes a JSON response.

In:    an exception, the request's id, the protocol of the request
Out:   a response in the protocol's form, with the headers that clients rely on
Never: the decision which status an error has (serve/errors.py)
"""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from serve.errors import retry_spread, to_api_error
from serve.http.protocol import Protocol

NOT_STORED = {"cache-control": "no-store"}
"""of errors, and of all that needs a key: shared caches know no key but that of Authorization"""


def error_reply(
    error: BaseException, request_id: str, headers: Mapping[str, str] | None = None, *, protocol: Protocol
) -> JSONResponse:
    """Returns the response to `error`.

    Args:
        headers: on top of the error's own; they replace those of the same name.
        protocol: of the request, which decides about the form.
    """
    refusal = to_api_error(error)
    form = protocol.error(refusal, request_id)
    own = {name.lower(): value for name, value in refusal.reply_headers(retry_spread()).items()}
    return JSONResponse(form.body, form.status, {**form.headers, **NOT_STORED, **own, **(headers or {})})


def named_error_reply(
    error: BaseException, request_id: str, headers: Mapping[str, str] | None = None, *, protocol: Protocol
) -> JSONResponse:
    """Returns the response to `error` with an X-Request-ID, for middleware outside the one that sets it."""
    return error_reply(error, request_id, {"x-request-id": request_id, **(headers or {})}, protocol=protocol)
