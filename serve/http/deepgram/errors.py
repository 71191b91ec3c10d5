"""Errors: what this service refuses, in the envelope and with the names that Deepgram's clients know.

In:    ApiErrors
Out:   statuses, bodies and messages
Never: the decision what is refused
"""

from typing import Any

from serve.errors import ApiError
from serve.http.close_codes import close_code

PATH = "/v1/speak"

NAMES: dict[str, tuple[int, str]] = {
    # Our code -> status and name there. Their clients repeat a 429 on their own.
    "missing_api_key": (401, "INVALID_AUTH"),
    "invalid_api_key": (401, "INVALID_AUTH"),
    "scope_missing": (403, "INSUFFICIENT_PERMISSIONS"),
    "quota_exceeded": (402, "QUOTA_EXCEEDED"),
    "rate_limited": (429, "TOO_MANY_REQUESTS"),
    "too_many_concurrent_requests": (429, "TOO_MANY_REQUESTS"),
    "overloaded": (429, "TOO_MANY_REQUESTS"),
    "deadline_unmeetable": (429, "TOO_MANY_REQUESTS"),
}


def is_spoken_at(path: str) -> bool:
    """True for a path whose errors have Deepgram's envelope."""
    return path == PATH or path.startswith(f"{PATH}/")


def status_of(refusal: ApiError) -> int:
    """Returns the HTTP status."""
    return _name(refusal)[0]


def body_of(refusal: ApiError, request_id: str) -> dict[str, Any]:
    """Returns the envelope."""
    return {"err_code": _name(refusal)[1], "err_msg": refusal.message, "request_id": request_id}


def message_of(refusal: ApiError, request_id: str, *, ends: bool) -> dict[str, Any]:
    """Returns the message on a socket; `ends`: the socket closes for this reason."""
    kind = "Error" if ends else "Warning"
    return {"type": kind, "description": refusal.message, "code": _name(refusal)[1], "request_id": request_id}


def close_code_of(refusal: ApiError) -> int:
    """Returns the code with which a socket closes for this reason."""
    return close_code(status_of(refusal))


def _name(refusal: ApiError) -> tuple[int, str]:
    return NAMES.get(refusal.spec.code, (refusal.spec.status, refusal.spec.code.upper()))
