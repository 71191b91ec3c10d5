"""Resume request: the headers with which a client goes on with a reply, and those that answer it.

In:    the headers of a request
Out:   Resumption; Content-Range, the ids of events
Never: a range that does not go to the end
"""

import re

from starlette.datastructures import Headers

from serve.access.idempotency import HEADER as IDEMPOTENCY_KEY
from serve.access.resume_tokens import HEADER, Resumption
from serve.errors import bad_request
from serve.speech.events import Digest, Resumed

DIGEST = "X-Resume-Digest"
EVENT_ID = "Last-Event-ID"
HASH_DIGITS = 16
"""of a SHA-256, in the id of an event"""
UNKNOWN_END = (1 << 53) - 1
"""last byte of a range whose end is not known yet (RFC 8673)"""
_RANGE = re.compile(r"bytes=([0-9]{1,15})-(?:9007199254740991)?")
_EVENT_ID = re.compile(r"([0-9]{1,9})-([0-9]{1,15})-([0-9a-f]{16})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def resumption_of(headers: Headers) -> Resumption | None:
    """Returns where a request goes on; None: it begins at the beginning.

    A Range counts beside a token or an idempotency key alone: without them, nothing says which bytes a reply would have.

    Raises:
        ApiError: 400
    """
    token, place, event = headers.get(HEADER), headers.get("range"), headers.get(EVENT_ID)
    if token is None and (IDEMPOTENCY_KEY not in headers or place is None is event):
        return None
    if (place is None) == (event is None):
        raise bad_request("invalid_range", f"{HEADER} needs Range: bytes=N- or {EVENT_ID}, one of the two", param="Range")
    if event is not None:
        return _at_event(event, token)
    match = _RANGE.fullmatch(str(place))
    if match is None:
        raise bad_request("invalid_range", "a reply goes on from a byte to its end: Range: bytes=N-", param="Range")
    digest = headers.get(DIGEST, "")
    if digest and not _SHA256.fullmatch(digest):
        raise bad_request("invalid_digest", f"{DIGEST} is a SHA-256 in 64 hexadecimal digits of lower case", param=DIGEST)
    return Resumption(int(match[1]), token, digest, is_range=True)


def content_range(resumed: Resumed, size: int | None = None) -> dict[str, str]:
    """Returns the header of a part.

    Args:
        size: of the part [bytes]; None: it is not known yet.
    """
    last, whole = (UNKNOWN_END, "*") if size is None else (resumed.first + size - 1, resumed.first + size)
    return {"Content-Range": f"bytes {resumed.first}-{last}/{whole}"}


def event_id(seq: int, size: int, digest: Digest) -> str:
    """Returns the id of an event: the number of the next one, the bytes of audio so far, and the beginning of their hash."""
    return f"{seq}-{size}-{digest.hexdigest()[:HASH_DIGITS]}"


def _at_event(event: str, token: str | None) -> Resumption:
    match = _EVENT_ID.fullmatch(event)
    if match is None:
        raise bad_request("invalid_event_id", f"{EVENT_ID} is the id of an event of the reply, as it was sent", param=EVENT_ID)
    return Resumption(int(match[2]), token, match[3], int(match[1]))
