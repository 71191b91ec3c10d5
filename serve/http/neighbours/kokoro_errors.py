"""Kokoro's errors: the envelope that clients of Kokoro-FastAPI read.

In:    an error, as the service knows it
Out:   the body of the reply
Owns:  the path on which it is spoken
Never: statuses: those are the service's own; an import that Serve's proxy would have to hold
"""

from typing import Any

from serve.errors import ApiError

PATH = "/dev/captioned_speech"


def error_body(refusal: ApiError) -> dict[str, Any]:
    """Returns the envelope of an error."""
    return {"detail": {"error": refusal.spec.code, "message": refusal.message, "type": refusal.spec.type}}
