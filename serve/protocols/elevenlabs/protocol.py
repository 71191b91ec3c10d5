"""ElevenLabs' protocol: its paths, and what this service refuses in the envelope and with the names that its clients know.

In:    ApiErrors
Out:   PROTOCOL; statuses, bodies and messages
"""

from collections.abc import Mapping
from typing import Any

from serve.errors import ApiError
from serve.http.protocol import ErrorForm, Protocol

KEY_HEADER = "xi-api-key"
"""by which their clients are known where other protocols have the same path"""

SERVED = ("text-to-speech", "text-to-dialogue", "voices", "user", "single-use-token", "pronunciation-dictionaries")

NAMES: dict[str, tuple[int, str]] = {
    # Our code -> status and name there. Their clients repeat a 429 on their own.
    "input_too_long": (400, "max_character_limit_exceeded"),
    "overloaded": (429, "system_busy"),
    "deadline_unmeetable": (429, "system_busy"),
    "quota_exceeded": (401, "quota_exceeded"),
    "voice_not_found": (404, "voice_not_found"),
}


def error_form(refusal: ApiError, request_id: str) -> ErrorForm:
    """Returns the reply."""
    status, name = _name(refusal)
    detail = {"status": name, "message": refusal.message, "request_id": request_id}
    return ErrorForm(status, {"detail": detail}, {"request-id": request_id})


def context_of(fields: Mapping[str, Any]) -> str | None:
    """Returns the context that a refused message names, if it names one."""
    named = fields.get("context_id") or fields.get("contextId")
    return named if isinstance(named, str) and len(named) <= 128 else None


def message_of(refusal: ApiError, request_id: str, context: str | None = None) -> dict[str, Any]:
    """Returns the message on a socket; `context` is the id of the one context that it concerns."""
    named = {} if context is None else {"contextId": context, "context_id": context}
    return {
        "message": refusal.message,
        "error": _name(refusal)[1],
        "code": PROTOCOL.close_code(refusal),
        "request_id": request_id,
        **named,
    }


def socket_error(refusal: ApiError, request_id: str, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the message about a refused socket. Clients of several contexts look for the one that they named."""
    return message_of(refusal, request_id, context_of(fields) if path.endswith("/multi-stream-input") else None)


def _name(refusal: ApiError) -> tuple[int, str]:
    return NAMES.get(refusal.spec.code, (refusal.spec.status, refusal.spec.code))


PROTOCOL = Protocol(
    paths=(*(f"/v1/{part}" for part in SERVED), "/v2/voices", "/elevenlabs"),
    shared_paths=("/v1/models",),
    is_known_by=lambda headers: KEY_HEADER in headers,
    routers=tuple(
        f"serve.protocols.elevenlabs.{part}routes" for part in ("", "dialogue_", "voice_", "account_", "dictionary_")
    ),
    error=error_form,
    has_key_message=lambda path: path.endswith("stream-input"),
    socket_error=socket_error,
)
