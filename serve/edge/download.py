"""Download: one file over HTTP, over as many connections as it takes, resumed to the byte.

In:    a URL, the SHA-256 of its file
Out:   the file
Owns:  the .part file beside the finished one
Never: a file under its own name before its SHA-256 is the expected one
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import requests
from urllib3.exceptions import HTTPError as TransportError

from pipeline.checkpoint.manifest import file_sha256

EXIT_UNREACHABLE = 1
EXIT_WRONG_BYTES = 3

CHUNK_BYTES = 1 << 20
SERVER_ERRORS = range(500, 600)
TOO_MANY_REQUESTS = 429
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


class FetchError(Exception):
    """A file could not be fetched; carries the exit code of the command."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to keep trying on a bad connection."""

    attempts: int = 8
    """consecutive connections that bring no byte"""
    first_pause_s: float = 1.0
    """doubles with each of them"""
    longest_pause_s: float = 30.0
    connect_timeout_s: float = 10.0
    silence_timeout_s: float = 30.0
    """longest time between two packets"""

    def pause_s(self, failures: int) -> float:
        """Returns the pause after that many consecutive failures [s]."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** (failures - 1))


RETRIES = RetryPolicy()


def download(
    session: requests.Session,
    url: str,
    path: Path,
    expected: str,
    retries: RetryPolicy,
    *,
    on_progress: Callable[[int, int | None], None] = lambda done, total: None,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Fetches a file; what an earlier call has left in its .part file is not fetched again. Blocking.

    Args:
        expected: SHA-256 of the file.
        on_progress: called with the bytes received and the total, if the server states it; may raise, which ends the call.

    Raises:
        FetchError: the server cannot be reached, lacks the file, or sent other bytes than expected.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    failures = 0
    while True:
        before = size_of(part)
        try:
            _continue(session, url, part, retries, on_progress)
            break
        except (requests.ConnectionError, requests.Timeout, TransportError, _CutShort) as error:
            reason = error
        failures = 1 if size_of(part) > before else failures + 1  # a connection that brought bytes resets the count
        if failures >= retries.attempts:
            raise FetchError(
                f"{url}: {failures} connections in a row brought nothing; the last one: {reason}. "
                f"{size_of(part)} bytes are kept",
                EXIT_UNREACHABLE,
            ) from reason
        sleep(retries.pause_s(failures))
    actual = file_sha256(part) if part.exists() else hashlib.sha256().hexdigest()
    if actual != expected:
        part.unlink(missing_ok=True)
        raise FetchError(f"{url}: expected SHA-256 {expected}, found {actual}. The part is deleted", EXIT_WRONG_BYTES)
    part.replace(path)


class _CutShort(Exception):
    """The connection ended, or the server was busy, before the file was complete."""


def _continue(
    session: requests.Session, url: str, part: Path, retries: RetryPolicy, on_progress: Callable[[int, int | None], None]
) -> None:
    """Uses one connection: continues where the .part file ends, or starts over if the server cannot resume."""
    start = size_of(part)
    # A compressed body would count other bytes than the file has.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    timeouts_s = (retries.connect_timeout_s, retries.silence_timeout_s)
    with session.get(url, headers=headers, stream=True, timeout=timeouts_s) as response:
        if response.status_code == RANGE_NOT_SATISFIABLE:
            if _range_total(response) == start:
                return  # the last connection died after the last byte
            part.unlink()
            raise _CutShort(f"the server's file ends before byte {start}")
        if response.status_code in SERVER_ERRORS or response.status_code == TOO_MANY_REQUESTS:
            raise _CutShort(f"HTTP {response.status_code} {response.reason}")
        if not response.ok:
            raise FetchError(f"{url}: HTTP {response.status_code} {response.reason}", EXIT_UNREACHABLE)
        resumed = response.status_code == PARTIAL_CONTENT and _range_start(response) == start
        if response.status_code == PARTIAL_CONTENT and not resumed:
            part.unlink(missing_ok=True)
            raise _CutShort("the server sent another range than requested")
        done = start if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file:
            # read1 returns what has arrived; iter_content would lose up to a whole chunk with every broken connection.
            while chunk := response.raw.read1(CHUNK_BYTES, decode_content=False):
                file.write(chunk)
                done += len(chunk)
                on_progress(done, total)
        if total is not None and done < total:
            raise _CutShort(f"the connection ended after {done} of {total} bytes")


def _range_start(response: requests.Response) -> int | None:
    """Returns the first byte of `Content-Range: bytes 100-199/200`."""
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else None


def _range_total(response: requests.Response) -> int | None:
    """Returns the length of the whole file in `Content-Range: bytes */200`."""
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdecimal() else None


def part_of(path: Path) -> Path:
    """Returns where a file is until all of it is there."""
    return path.with_name(f"{path.name}.part")


def size_of(path: Path) -> int:
    """Returns the size of a file; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0
