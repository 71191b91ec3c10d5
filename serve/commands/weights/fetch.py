"""Fetches the real ChatTTS weights: chattts-serve weights fetch --accept-license cc-by-nc-4.0

In:    a hub endpoint that serves <endpoint>/2Noise/ChatTTS/resolve/main/<file>
Out:   the folder hub:2Noise/ChatTTS resolves to, with SHA256SUMS
Never: a file under its own name before its SHA-256 is the one the ChatTTS package expects; how a file is fetched:
       serve/edge/download.py
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from pipeline.checkpoint.layout import FILES
from pipeline.checkpoint.locate import HUB_NAME, hub_folder
from pipeline.checkpoint.manifest import file_sha256, write_manifest
from pipeline.paths import cache_home
from serve.edge.download import EXIT_WRONG_BYTES, RETRIES, FetchError, RetryPolicy, download

LICENSE = "cc-by-nc-4.0"
LICENSE_TEXT = f"""\
The weights of {HUB_NAME} are published under CC BY-NC 4.0, not under this project's licence: you may use and share them
with attribution, and not for any commercial purpose (https://creativecommons.org/licenses/by-nc/4.0/).
To accept them: --accept-license {LICENSE}"""
DEFAULT_ENDPOINT = "https://huggingface.co"
HASHES_FILE = Path(__file__).with_name("sha256_map.json")  # ChatTTS/res/sha256_map.json of the ChatTTS package, unchanged

EXIT_OK = 0
EXIT_REFUSED = 2
EXIT_INCOMPLETE = 4
EXIT_DISK = 5

OnProgress = Callable[[str, int, int | None], None]
"""called with file, bytes received, total bytes if the server states them"""


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
                fetch_all(folder, hashes, endpoint=options.endpoint, on_progress=_bars(progress), sleep=_pause)
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
    retries: RetryPolicy = RETRIES,
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
                url, progress = f"{endpoint.rstrip('/')}/{HUB_NAME}/resolve/main/{file}", _of(file, on_progress)
                try:
                    download(session, url, folder / file, expected, retries, on_progress=progress, sleep=sleep)
                except FetchError as error:
                    raise FetchError(f"{error}: run again, or check --endpoint, which may be a mirror", error.status) from error
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


def _pause(seconds: float) -> None:
    print(f"the server does not answer as it should; trying again in {seconds:.0f} s", file=sys.stderr)
    time.sleep(seconds)


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
