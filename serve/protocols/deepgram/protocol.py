"""Deepgram's protocol: its paths, and what this service refuses in the envelope and with the names that its clients know.

In:    ApiErrors
Out:   PROTOCOL; statuses, bodies and messages
"""

from typing import Any

from serve.errors import ApiError
from serve.http.protocol import ErrorForm, Protocol

PATH = "/v1/speak"
FLUX_PATH = "/v2/speak"
GRANT_PATH = "/v1/auth/grant"

NAMES: dict[str, tuple[int, str]] = {
    # Our code -> status and name there. Their clients repeat a 429 on their own.
    "missing_api_key": (401, "INVALID_AUTH"),
    "invalid_api_key": (401, "INVALID_AUTH"),
    "invalid_single_use_token": (401, "INVALID_AUTH"),
    "scope_missing": (403, "INSUFFICIENT_PERMISSIONS"),
    "quota_exceeded": (402, "QUOTA_EXCEEDED"),
    "rate_limited": (429, "TOO_MANY_REQUESTS"),
    "too_many_concurrent_requests": (429, "TOO_MANY_REQUESTS"),
    "overloaded": (429, "TOO_MANY_REQUESTS"),
    "deadline_unmeetable": (429, "TOO_MANY_REQUESTS"),
}


def error_form(refusal: ApiError, request_id: str) -> ErrorForm:
    """Returns the reply."""
    status, name = _name(refusal)
    body = {"err_code": name, "err_msg": refusal.message, "request_id": request_id}
    return ErrorForm(status, body, {"dg-request-id": request_id, "dg-error": refusal.message})


def message_of(refusal: ApiError, request_id: str, *, ends: bool) -> dict[str, Any]:
    """Returns the message on a socket; `ends`: the socket closes for this reason."""
    kind = "Error" if ends else "Warning"
    return {"type": kind, "description": refusal.message, "code": _name(refusal)[1], "request_id": request_id}


def _name(refusal: ApiError) -> tuple[int, str]:
    return NAMES.get(refusal.spec.code, (refusal.spec.status, refusal.spec.code.upper()))


PROTOCOL = Protocol(
    paths=(PATH, FLUX_PATH, GRANT_PATH),
    shared_paths=("/v1/models",),
    is_known_by=lambda headers: headers.get("authorization", "").lower().startswith("token "),
    routers=("serve.protocols.deepgram.routes",),
    error=error_form,
)
