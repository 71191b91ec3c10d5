"""Refusals: what a client is told whose key is none, or whose key has used up its quota.

In:    a reason
Out:   ApiError: 401, 429
Never: keys
"""

from serve.access.api_keys import Quota
from serve.access.quotas import QuotaDecision
from serve.errors import ApiError, ErrorSpec

MESSAGES = {
    "rate_limited": "this key's requests per second are used up",
    "too_many_concurrent_requests": "this key has reached its number of concurrent requests",
    "quota_exceeded": "this key's quota of characters per day or of audio per minute is used up",
}


def unauthorised(code: str, message: str) -> ApiError:
    """Returns a refusal with status 401."""
    return ApiError(message, ErrorSpec(401, "authentication_error", code, False), headers={"WWW-Authenticate": "Bearer"})


def invalid_key() -> ApiError:
    """Returns the refusal of a key that is none, or is none any more."""
    return unauthorised("invalid_api_key", "no such key; it may have been revoked")


def refused(decision: QuotaDecision, quota: Quota, *, retry_helps: bool = True) -> ApiError:
    """Returns a refusal with status 429."""
    kind = ErrorSpec(429, "rate_limit_error", decision.refusal, retry_helps, max(decision.retry_after_s, 0.001))
    return ApiError(MESSAGES[decision.refusal], kind, headers=rate_headers(decision, quota))


def rate_headers(decision: QuotaDecision, quota: Quota) -> dict[str, str]:
    """Returns the state of the request rate, in the usual headers and in OpenAI's."""
    if decision.remaining is None:
        return {}
    limit, remaining, reset_s = str(quota.burst), str(max(0, decision.remaining)), decision.reset_s
    return {
        "RateLimit-Limit": limit,
        "RateLimit-Remaining": remaining,
        "RateLimit-Reset": str(max(1, round(reset_s + 0.5))),
        "x-ratelimit-limit-requests": limit,
        "x-ratelimit-remaining-requests": remaining,
        "x-ratelimit-reset-requests": f"{reset_s:.3f}s",
    }
