"""Ranged: replies of which a client may ask for a part (RFC 9110, 14).

In:    a size, a function that yields bytes [first, stop), the headers of a request
Out:   200 or 206; a 416
Never: more than one range at once: several are answered with the whole, as the RFC allows
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import Headers

from serve.speech.resuming import unsatisfiable

BLOCK = 1 << 18
_RANGE = re.compile(r"bytes=\s*([0-9]*)-([0-9]*)\s*")
_MOST_DIGITS = 15  # more stand for a place behind every file

Reader = Callable[[int, int], Iterator[bytes]]
"""yields bytes [first, stop); called in a thread"""


def ranged(request: Headers, read: Reader, size: int, *, etag: str, media_type: str, headers: Mapping[str, str]) -> Response:
    """Returns the bytes that the headers ask for.

    Args:
        etag: of the whole, without quotes.

    Raises:
        ApiError: 416
    """
    also = {**headers, "Accept-Ranges": "bytes", "ETag": f'"{etag}"'}
    requested = request.get("range") if request.get("if-range", f'"{etag}"') == f'"{etag}"' else None
    first, stop = 0, size
    if requested is not None and (span := _span(requested, size)) is not None:
        first, stop = span
        if first >= stop:
            raise unsatisfiable(size, also)
        also["Content-Range"] = f"bytes {first}-{stop - 1}/{size}"
    also["Content-Length"] = str(stop - first)
    status = 206 if "Content-Range" in also else 200
    return StreamingResponse(read(first, stop), status, also, media_type)


def file_reader(path: Path) -> Reader:
    """Returns the reader of a file. A call of it opens the file, which may be removed or replaced from then on, and raises
    FileNotFoundError; the iterator closes it, however far it was read."""

    def pieces(first: int, stop: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(first)
            yield b""
            while first < stop and (piece := file.read(min(BLOCK, stop - first))):
                first += len(piece)
                yield piece

    def read(first: int, stop: int) -> Iterator[bytes]:
        opened = pieces(first, stop)
        next(opened)
        return opened

    return read


def _span(requested: str, size: int) -> tuple[int, int] | None:
    """Returns [first, stop) of a Range header; None: it is to be ignored."""
    match = _RANGE.fullmatch(requested)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - _place(last)), size
    if last and _place(last) < _place(first):
        return None
    return _place(first), min(size, _place(last) + 1) if last else size


def _place(digits: str) -> int:
    """Returns the number that digits are, or one that is larger than every size: Python reads no more than 4300 of them."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
