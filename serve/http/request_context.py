"""Request context: reads the headers and the connection of a request.

In:    a request, or the opening of a WebSocket
Out:   RequestContext
Never: bodies
"""

from starlette.requests import HTTPConnection

from serve.access.idempotency import HEADER as IDEMPOTENCY_KEY
from serve.http.middleware import caller_of, request_id_of
from serve.speech.job import RequestContext


def context_of(request: HTTPConnection) -> RequestContext:
    """Returns the context that the headers and the connection give."""
    headers = request.headers
    return RequestContext(
        request_id=request_id_of(request),
        caller=caller_of(request),
        client_host=getattr(request.state, "client", None),
        traceparent=headers.get("traceparent"),
        strict=is_strict(request),
        cache_control=headers.get("cache-control", ""),
        idempotency_key=headers.get(IDEMPOTENCY_KEY),
    )


def is_strict(request: HTTPConnection) -> bool:
    """True if the query says strict=1: fields without effect are refused instead of named in the reply."""
    return request.query_params.get("strict") in ("1", "true")
