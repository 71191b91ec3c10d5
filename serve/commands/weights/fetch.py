"""Fetches the real ChatTTS weights: chattts-serve weights fetch --accept-license cc-by-nc-4.0

In:    a hub endpoint that serves <endpoint>/2Noise/ChatTTS/resolve/main/<file>
Out:   the folder hub:2Noise/ChatTTS resolves to, with SHA256SUMS
Owns:  the .part files beside the finished ones
Never: a file under its own name before its SHA-256 is the one the ChatTTS package expects
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from urllib3.exceptions import HTTPError as TransportError

from pipeline.checkpoint.layout import FILES
from pipeline.checkpoint.locate import HUB_NAME, hub_folder
from pipeline.checkpoint.manifest import file_sha256, write_manifest
from pipeline.paths import cache_home

LICENSE = "cc-by-nc-4.0"
LICENSE_TEXT = f"""\
The weights of {HUB_NAME} are published under CC BY-NC 4.0, not under this project's licence: you may use and share them
with attribution, and not for any commercial purpose (https://creativecommons.org/licenses/by-nc/4.0/).
To accept them: --accept-license {LICENSE}"""
DEFAULT_ENDPOINT = "https://huggingface.co"
HASHES_FILE = Path(__file__).with_name("sha256_map.json")  # ChatTTS/res/sha256_map.json of the ChatTTS package, unchanged

EXIT_OK = 0
EXIT_UNREACHABLE = 1
EXIT_REFUSED = 2
EXIT_WRONG_BYTES = 3
EXIT_INCOMPLETE = 4
EXIT_DISK = 5

CHUNK_BYTES = 1 << 20
SERVER_ERRORS = range(500, 600)
TOO_MANY_REQUESTS = 429
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206

OnProgress = Callable[[str, int, int | None], None]
"""called with file, bytes received, total bytes if the server states them"""


class FetchError(Exception):
    """The weights could not be fetched; carries the exit code of the command."""

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


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 complete, 1 unreachable, 2 licence not accepted, 3 wrong bytes, 4 offline and incomplete, 5 disk."""
    options = _parser().parse_args(arguments)
    if not options.offline and options.accept_license != LICENSE:
        print(LICENSE_TEXT, file=sys.stderr)
        return EXIT_REFUSED
    folder = options.out if options.out is not None else hub_folder(cache_home())
    console = Console(stderr=True)
    try:
        hashes = expected_hashes()
        if options.offline:
            check_offline(folder, hashes)
        else:
            with _progress(console) as progress:
                fetch_all(folder, hashes, endpoint=options.endpoint, on_progress=_bars(progress))
    except FetchError as error:
        print(error, file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"{folder} could not be written: {error}", file=sys.stderr)
        return EXIT_DISK
    print(folder)
    return EXIT_OK


def expected_hashes() -> dict[str, str]:
    """Returns file -> SHA-256, as the ChatTTS package lists them."""
    known = json.loads(HASHES_FILE.read_text(encoding="utf-8"))
    return {file: known["sha256_" + file.replace("/", "_").replace(".", "_")] for file in FILES}


def fetch_all(
    folder: Path,
    hashes: Mapping[str, str],
    *,
    endpoint: str = DEFAULT_ENDPOINT,
    retries: RetryPolicy = RetryPolicy(),
    on_progress: OnProgress = lambda file, done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Downloads every file that is missing or wrong, then writes SHA256SUMS.

    Raises:
        FetchError: the server cannot be reached, lacks a file, or sent other bytes than expected.
    """
    with requests.Session() as session:
        for file, expected in hashes.items():
            if not is_complete(folder / file, expected):
                url = f"{endpoint.rstrip('/')}/{HUB_NAME}/resolve/main/{file}"
                part = _download(session, url, folder / file, retries, on_progress=_of(file, on_progress), sleep=sleep)
                _accept(part, folder / file, expected, url)
            done = (folder / file).stat().st_size
            on_progress(file, done, done)
    write_manifest(folder, dict(hashes))


def check_offline(folder: Path, hashes: Mapping[str, str]) -> None:
    """Verifies the files that are there, without the network.

    Raises:
        FetchError: files are missing, or one is wrong; the message names them.
    """
    missing = [file for file in hashes if not (folder / file).is_file()]
    if missing:
        raise FetchError(f"{folder} lacks {', '.join(missing)}; run again without --offline", EXIT_INCOMPLETE)
    for file, expected in hashes.items():
        actual = file_sha256(folder / file)
        if actual != expected:
            raise FetchError(
                f"{folder / file}: expected SHA-256 {expected}, found {actual}; run again without --offline", EXIT_WRONG_BYTES
            )
    write_manifest(folder, dict(hashes))


def is_complete(path: Path, expected: str) -> bool:
    """True if the file has the expected SHA-256; a wrong one is downloaded again and replaced."""
    return path.is_file() and file_sha256(path) == expected


def _download(
    session: requests.Session,
    url: str,
    path: Path,
    retries: RetryPolicy,
    *,
    on_progress: Callable[[int, int | None], None],
    sleep: Callable[[float], None],
) -> Path:
    """Fills the .part file over as many connections as it takes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    failures = 0
    while True:
        before = _size(part)
        try:
            _continue(session, url, part, retries, on_progress)
            return part
        except (requests.ConnectionError, requests.Timeout, TransportError, _CutShort) as error:
            reason = error
        failures = 1 if _size(part) > before else failures + 1  # a connection that brought bytes resets the count
        if failures >= retries.attempts:
            raise FetchError(
                f"{url}: {failures} connections in a row brought nothing; the last one: {reason}. "
                f"{_size(part)} bytes are kept: run again to go on, or name a mirror with --endpoint",
                EXIT_UNREACHABLE,
            ) from reason
        sleep(retries.pause_s(failures))


class _CutShort(Exception):
    """The connection ended, or the server was busy, before the file was complete."""


def _continue(
    session: requests.Session, url: str, part: Path, retries: RetryPolicy, on_progress: Callable[[int, int | None], None]
) -> None:
    """Uses one connection: continues where the .part file ends, or starts over if the server cannot resume."""
    start = _size(part)
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
            raise FetchError(f"{url}: HTTP {response.status_code} {response.reason}; check --endpoint", EXIT_UNREACHABLE)
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


def _accept(part: Path, path: Path, expected: str, url: str) -> None:
    actual = file_sha256(part) if part.exists() else hashlib.sha256().hexdigest()
    if actual != expected:
        part.unlink(missing_ok=True)
        raise FetchError(
            f"{url}: expected SHA-256 {expected}, found {actual}. The part is deleted: run again, or name another --endpoint",
            EXIT_WRONG_BYTES,
        )
    part.replace(path)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _of(file: str, on_progress: OnProgress) -> Callable[[int, int | None], None]:
    return lambda done, total: on_progress(file, done, total)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chattts-serve weights fetch",
        description=f"Fetch and verify the weights of {HUB_NAME} (1.2 GB).",
        epilog="Exit codes: 0 complete, 1 unreachable, 2 wrong usage or licence not accepted, 3 wrong bytes, "
        "4 incomplete with --offline, 5 disk.",
    )
    parser.add_argument("--accept-license", metavar=LICENSE, help="accept CC BY-NC 4.0: no commercial use")
    parser.add_argument(
        "--endpoint", metavar="URL", default=DEFAULT_ENDPOINT, help="a hub or a mirror of one (default: %(default)s)"
    )
    parser.add_argument("--offline", action="store_true", help="verify the files that are there, without the network")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the files (default: that of hub:{HUB_NAME})")
    return parser


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _bars(progress: Progress) -> OnProgress:
    """Returns a callback that shows a bar per file, added when the file begins."""
    tasks = {}

    def show(file: str, done: int, total: int | None) -> None:
        if file not in tasks:
            tasks[file] = progress.add_task(file, total=total)
        progress.update(tasks[file], completed=done, total=total)

    return show


if __name__ == "__main__":
    sys.exit(main())
