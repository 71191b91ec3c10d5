"""Errors: the one table that gives each domain error its status, type and code.

In:    SynthesisError, ApiError, or anything else
Out:   ApiError: all an error reply needs, in OpenAI's envelope
Never: a client's text in a message, FastAPI's own error shapes
"""

import errno
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import (
    AtCapacity,
    AudioFault,
    Conflict,
    DeadlineExceeded,
    DeadlineUnmeetable,
    Draining,
    EngineDead,
    EngineFault,
    InvalidDocument,
    InvalidLexicon,
    InvalidRequest,
    InvalidSsml,
    NonFiniteOutput,
    NoSpeakableText,
    NotCached,
    NotTheOwner,
    OtherBuild,
    PartlyUnspeakable,
    ReaderStalled,
    ReadOnlyVoice,
    ReferenceRejected,
    RefineRejected,
    RequestQuarantined,
    ShareUsedUp,
    StageAsleep,
    StageUnavailable,
    StoreFull,
    StoreUnavailable,
    SynthesisError,
    TextTooHard,
    TextTooLong,
    UnknownLexicon,
    UnknownVoice,
    UnsupportedFormat,
    VoiceExists,
    WorkerDied,
)

MOST_SPREAD = 0.5
LONGEST_SPREAD_S = 60.0  # a longer wait is that of a key's own quota


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """Status, type and code of one kind of error."""

    status: int
    type: str
    code: str
    retry_helps: bool
    retry_after_s: float | None = None


ERROR_SPECS: dict[type[SynthesisError], ErrorSpec] = {
    InvalidRequest: ErrorSpec(400, "invalid_request_error", "invalid_request", False),
    TextTooLong: ErrorSpec(400, "invalid_request_error", "input_too_long", False),
    NoSpeakableText: ErrorSpec(400, "invalid_request_error", "no_speakable_text", False),
    PartlyUnspeakable: ErrorSpec(400, "invalid_request_error", "partly_unspeakable", False),
    UnknownVoice: ErrorSpec(400, "invalid_request_error", "voice_not_found", False),
    UnsupportedFormat: ErrorSpec(400, "invalid_request_error", "unsupported_format", False),
    Conflict: ErrorSpec(409, "conflict_error", "conflict", False),
    VoiceExists: ErrorSpec(409, "conflict_error", "voice_exists", False),
    ReadOnlyVoice: ErrorSpec(403, "permission_error", "voice_read_only", False),
    NotTheOwner: ErrorSpec(403, "permission_error", "not_the_owner", False),
    ShareUsedUp: ErrorSpec(507, "invalid_request_error", "share_used_up", False),
    ReferenceRejected: ErrorSpec(422, "invalid_request_error", "reference_rejected", False),
    InvalidSsml: ErrorSpec(400, "invalid_request_error", "invalid_ssml", False),
    InvalidDocument: ErrorSpec(400, "invalid_request_error", "invalid_document", False),
    InvalidLexicon: ErrorSpec(400, "invalid_request_error", "invalid_lexicon", False),
    UnknownLexicon: ErrorSpec(400, "invalid_request_error", "lexicon_not_found", False),
    RefineRejected: ErrorSpec(422, "invalid_request_error", "refine_rejected", False),
    NotCached: ErrorSpec(504, "not_found_error", "not_cached", False),  # RFC 9111, only-if-cached
    TextTooHard: ErrorSpec(422, "invalid_request_error", "text_too_hard", False),
    RequestQuarantined: ErrorSpec(422, "invalid_request_error", "request_quarantined", False),
    AtCapacity: ErrorSpec(429, "overloaded_error", "overloaded", True, 1.0),
    DeadlineUnmeetable: ErrorSpec(429, "overloaded_error", "deadline_unmeetable", True, 1.0),
    Draining: ErrorSpec(503, "overloaded_error", "draining", True, 2.0),
    StageUnavailable: ErrorSpec(503, "overloaded_error", "circuit_open", True, 2.0),
    StageAsleep: ErrorSpec(503, "overloaded_error", "waking", True, 2.0),
    DeadlineExceeded: ErrorSpec(504, "server_error", "timeout", True),
    ReaderStalled: ErrorSpec(504, "server_error", "reader_stalled", False),
    StoreUnavailable: ErrorSpec(503, "overloaded_error", "store_unavailable", True, 5.0),
    StoreFull: ErrorSpec(507, "server_error", "store_full", False),
    AudioFault: ErrorSpec(500, "server_error", "audio_error", True),
    EngineFault: ErrorSpec(500, "server_error", "engine_error", True),
    # The same seed gives the same numbers: a client library that retries would only repeat the fault.
    NonFiniteOutput: ErrorSpec(500, "server_error", "generation_failed", False),
    EngineDead: ErrorSpec(503, "overloaded_error", "engine_dead", True, 2.0),
    WorkerDied: ErrorSpec(503, "overloaded_error", "engine_dead", True, 2.0),
    OtherBuild: ErrorSpec(503, "overloaded_error", "engine_dead", True, 2.0),
    SynthesisError: ErrorSpec(500, "server_error", "internal_error", False),
}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_IS_FULL = "the service's disk is full, so this cannot be kept; nothing was changed. Free space, or ask the operator to"
REASONS = {404: ("not_found_error", "not_found"), 405: ("invalid_request_error", "method_not_allowed")}


class ApiError(Exception):
    """An error reply: status, envelope and headers."""

    def __init__(
        self, message: str, spec: ErrorSpec, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.spec = spec
        self.param = param
        self.headers = dict(headers or {})

    def body(self, request_id: str) -> dict[str, Any]:
        """Returns the error in OpenAI's envelope."""
        return {
            "error": {
                "message": self.message,
                "type": self.spec.type,
                "param": self.param,
                "code": self.spec.code,
                "request_id": request_id,
            }
        }

    def wait_s(self, spread: float = 0.0) -> float | None:
        """Returns when to try again [s]; None: it is neither a 429 nor a 503.

        Args:
            spread: share of a short wait to add: clients that were refused together should not come back together.
        """
        if self.spec.status not in (429, 503):
            return None
        wait_s = self.spec.retry_after_s or 1.0
        return wait_s * (1 + spread) if wait_s <= LONGEST_SPREAD_S else wait_s

    def reply_headers(self, spread: float = 0.0) -> dict[str, str]:
        """Returns the headers: `Retry-After` for 429 and 503, `x-should-retry: false` if a retry cannot help.

        Args:
            spread: as of `wait_s`.
        """
        headers = dict(self.headers)
        if (wait_s := self.wait_s(spread)) is not None:
            headers |= {"Retry-After": str(max(1, math.ceil(wait_s))), "Retry-After-Ms": str(math.ceil(1000 * wait_s))}
        if not self.spec.retry_helps:
            headers["x-should-retry"] = "false"
        return headers


def retry_spread() -> float:
    """Returns the `spread` of one reply."""
    return random.uniform(0, MOST_SPREAD)


def not_finished(total_s: float) -> DeadlineExceeded:
    """Returns the error of a reply that is not finished in its whole time [s]."""
    return DeadlineExceeded(f"not finished after {total_s:g} s (limits.total_timeout_s)")


def bad_request(code: str, message: str, *, param: str | None = None, status: int = 400) -> ApiError:
    """Returns an error that the client can fix."""
    return ApiError(message, ErrorSpec(status, "invalid_request_error", code, False), param=param)


def plain_status(status: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """Returns the error for what the router itself refuses: no such route, wrong method."""
    type_, code = REASONS.get(status, ("invalid_request_error", "invalid_request"))
    message = {404: "no such route; GET /openapi.json lists them all", 405: "this route does not take this method"}
    return ApiError(message.get(status, "the request is refused"), ErrorSpec(status, type_, code, False), headers=headers)


def to_api_error(error: BaseException) -> ApiError:
    """Returns the reply to `error`, by the nearest of its classes in ERROR_SPECS; defects become a 500 without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return ApiError(DISK_IS_FULL, ERROR_SPECS[StoreFull])
    if not isinstance(error, SynthesisError):
        return ApiError("an internal error; its request_id finds it in the log", ERROR_SPECS[SynthesisError])
    spec = next(ERROR_SPECS[ancestor] for ancestor in type(error).__mro__ if ancestor in ERROR_SPECS)
    if isinstance(error, AtCapacity | StageUnavailable | StageAsleep):
        spec = replace(spec, retry_after_s=error.retry_after_s)
    return ApiError(error.message, spec, param=error.param)
