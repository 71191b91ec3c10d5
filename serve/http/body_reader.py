"""Body reader: receives request bodies, a bounded number at a time and none slower than the minimum rate.

In:    requests
Out:   what a body of JSON says, the pieces of another; or 400, 408, 413, 415
Owns:  the list of bodies that are being received; how many values one may have
Never: a large body parsed on the event loop; admission, which follows once the body has arrived
"""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from serve.config.app_config import LimitsConfig
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.speech.schemas.json_size import check_json

T = TypeVar("T")

JSON = "application/json"
FORM = "multipart/form-data"
MOST_VALUES = 10_000
"""fields and elements of a body; parsing so many takes some 10 ms"""
SMALL_BYTES = 16 << 10
"""of a body that is parsed on the event loop; a larger one is parsed in a thread"""
MAX_RECEIVING = 128  # bodies at once; serve/config/config_file.py leaves twice as many places above limits.max_in_flight
MAX_RECEIVING_BYTES = 64 << 20  # of them together: one of the largest that any key allows
GRACE_S = 10.0  # before limits.body_min_bytes_per_s applies: a phone's radio wakes, a proxy connects again
HEAD_START = 1024  # bytes credited to every body, or the newest one would always be the slowest


@dataclass(slots=True, eq=False)
class _Arriving:
    """A body that is being received."""

    since: float
    received: int = 0
    is_dropped: bool = False
    waiting: asyncio.Timeout | None = None

    def rate(self, now: float) -> float:
        """Returns the bytes per second so far."""
        return (self.received + HEAD_START) / max(now - self.since, 1e-9)


class BodyReader:
    """Receives bodies. If there are too many of them, or too many bytes, the slowest one is dropped: a body sent in one piece
    is never delayed, and slow senders cannot shut out the others."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._arriving: set[_Arriving] = set()

    @property
    def arriving(self) -> int:
        """How many bodies are being received."""
        return len(self._arriving)

    async def read_json(
        self, request: Request, parse: Callable[[bytes], T], *, most_bytes: int | None = None, most_values: int = MOST_VALUES
    ) -> T:
        """Receives a body of type application/json, and returns what `parse` makes of it.

        Args:
            parse: called with the body, in another thread if it is large. What it does before it returns to Python code keeps
                everybody waiting, so it calls nothing that takes longer than a parser of JSON.
            most_bytes: None: limits.max_body_bytes.
            most_values: fields and elements.

        Raises:
            ApiError: 400, 408, 413, 415, and what `parse` raises.
        """
        check_content(request, JSON)
        received = bytearray()
        async for piece in self.pieces(request, self._limits.max_body_bytes if most_bytes is None else most_bytes):
            received += piece
        raw = bytes(received).removeprefix(codecs.BOM_UTF8)  # RFC 8259, 8.1: it may be ignored

        def read() -> T:
            check_json(raw, most_values)
            return parse(raw)

        return read() if len(raw) <= SMALL_BYTES else await asyncio.to_thread(read)

    async def pieces(self, request: Request, most_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yields a body as it arrives.

        Raises:
            ApiError: 413, larger than most_bytes; 408, too slow.
        """
        body = _Arriving(_now())
        self._arriving.add(body)
        self._make_room()
        stream = request.stream()
        try:
            while (piece := await self._next(stream, body)) is not None:
                body.received += len(piece)
                if body.received > most_bytes:
                    raise too_large(most_bytes)
                self._make_room()
                yield piece
        finally:
            self._arriving.discard(body)

    async def _next(self, stream: AsyncGenerator[bytes, None], body: _Arriving) -> bytes | None:
        """Returns the next piece; None at the end."""
        limits = self._limits
        if body.is_dropped:
            raise _dropped()
        try:
            async with asyncio.timeout_at(_deadline(body, limits)) as body.waiting:
                return await anext(stream, None)
        except TimeoutError:
            raise _dropped() if body.is_dropped else _too_slow(limits) from None
        finally:
            body.waiting = None

    def _make_room(self) -> None:
        while len(self._arriving) > 1 and self._are_too_many():
            slowest = min(self._arriving, key=lambda body: body.rate(_now()))
            self._arriving.remove(slowest)
            slowest.is_dropped = True
            if slowest.waiting is not None and not slowest.waiting.expired():
                slowest.waiting.reschedule(_now())

    def _are_too_many(self) -> bool:
        return len(self._arriving) > MAX_RECEIVING or sum(body.received for body in self._arriving) > MAX_RECEIVING_BYTES


def check_content(request: Request, media_type: str) -> None:
    """Checks that the body is of the media type and not compressed.

    Raises:
        ApiError: 415
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise ApiError(
            "compressed bodies are not taken here: send it without Content-Encoding",
            ErrorSpec(415, "invalid_request_error", "unsupported_content_encoding", False),
            headers={"Accept-Encoding": "identity"},
        )
    if media_type_of(request) != media_type:
        raise bad_request(
            "unsupported_media_type",
            f"the body must be {media_type}; with curl: -H 'Content-Type: application/json', or -F for a form",
            status=415,
        )


def media_type_of(request: Request) -> str:
    """Returns the media type of the body, without parameters; empty if the request does not name it."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def too_large(limit: int) -> ApiError:
    """Returns a refusal with status 413."""
    return _cut_off(bad_request("body_too_large", f"the body is larger than {limit} bytes", status=413))


def _too_slow(limits: LimitsConfig) -> ApiError:
    return _timed_out(
        f"the body did not arrive in time: all of it within {limits.body_timeout_s:g} s, after {GRACE_S:g} s at "
        f"least {limits.body_min_bytes_per_s:g} bytes per second"
    )


def _dropped() -> ApiError:
    return _timed_out("too many bodies are being received, and this one is the slowest; send it again in one piece")


def _timed_out(message: str) -> ApiError:
    return _cut_off(ApiError(message, ErrorSpec(408, "invalid_request_error", "body_timeout", True)))


def _cut_off(refusal: ApiError) -> ApiError:
    """Adds `Connection: close`: the rest of the body is not read, so the connection cannot be used again."""
    refusal.headers["Connection"] = "close"
    return refusal


def _deadline(body: _Arriving, limits: LimitsConfig) -> float:
    kept_s = body.received / limits.body_min_bytes_per_s if limits.body_min_bytes_per_s else limits.body_timeout_s
    return body.since + min(limits.body_timeout_s, max(GRACE_S, kept_s))


def _now() -> float:
    return asyncio.get_running_loop().time()
