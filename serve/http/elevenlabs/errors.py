"""Errors: what this service refuses, in the envelope and with the names that ElevenLabs' clients know.

In:    ApiErrors
Out:   statuses, bodies and messages
Never: the decision what is refused
"""

from typing import Any

from serve.errors import ApiError
from serve.http.close_codes import close_code

PATHS = ("/v1/text-to-speech/", "/v1/text-to-dialogue", "/v1/voices", "/v2/voices", "/v1/user", "/elevenlabs/")

NAMES: dict[str, tuple[int, str]] = {
    # Our code -> status and name there. Their clients repeat a 429 on their own.
    "input_too_long": (400, "max_character_limit_exceeded"),
    "overloaded": (429, "system_busy"),
    "deadline_unmeetable": (429, "system_busy"),
    "quota_exceeded": (401, "quota_exceeded"),
    "voice_not_found": (404, "voice_not_found"),
}


def is_spoken_at(path: str) -> bool:
    """True for a path whose errors have ElevenLabs' envelope."""
    return path.startswith(PATHS)


def is_socket(path: str) -> bool:
    """True for the path of a WebSocket, whose clients may say their key in the first message."""
    return is_spoken_at(path) and path.endswith("stream-input")


def has_contexts(path: str) -> bool:
    """True for a socket whose clients look for errors about the context that they named."""
    return is_spoken_at(path) and path.endswith("/multi-stream-input")


def status_of(refusal: ApiError) -> int:
    """Returns the HTTP status."""
    return _name(refusal)[0]


def body_of(refusal: ApiError, request_id: str) -> dict[str, Any]:
    """Returns the envelope."""
    return {"detail": {"status": _name(refusal)[1], "message": refusal.message, "request_id": request_id}}


def message_of(refusal: ApiError, request_id: str, context: str | None = None) -> dict[str, Any]:
    """Returns the message on a socket; `context` is the id of the one context that it concerns."""
    named = {} if context is None else {"contextId": context, "context_id": context}
    return {
        "message": refusal.message,
        "error": _name(refusal)[1],
        "code": close_code_of(refusal),
        "request_id": request_id,
        **named,
    }


def close_code_of(refusal: ApiError) -> int:
    """Returns the code with which a socket closes for this reason."""
    return close_code(status_of(refusal))


def _name(refusal: ApiError) -> tuple[int, str]:
    return NAMES.get(refusal.spec.code, (refusal.spec.status, refusal.spec.code))
