"""Close codes: the numbers with which a WebSocket says why it closes.

In:    HTTP statuses of refusals
Out:   codes of RFC 6455, section 7.4, and of its registry
Owns:  which status is which code
Never: a protocol's own names
"""

NORMAL, GOING_AWAY, POLICY_VIOLATION, MESSAGE_TOO_BIG, INTERNAL_ERROR, TRY_AGAIN = 1000, 1001, 1008, 1009, 1011, 1013


def close_code(status: int) -> int:
    """Returns the code for a refusal with this HTTP status."""
    if status in (429, 503):
        return TRY_AGAIN
    return INTERNAL_ERROR if status >= 500 else POLICY_VIOLATION
