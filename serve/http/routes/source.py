"""Source API: offers the source of the running program.

In:    SourceOfferConfig; the archive of the source
Out:   JSON, an archive
"""

import gzip
import hashlib
import os
import tarfile
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackagePath, distribution
from pathlib import Path
from typing import IO, Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from serve.config.app_config import PROJECT
from serve.http.about import NAME, version
from serve.http.dependencies import RequestServices
from serve.http.route_access import open_to_all

LICENCE = "AGPL-3.0-or-later"
ARCHIVE = "/source.tar.gz"
router = APIRouter()
PACKAGE = "chattts-serve"
FOLDERS = ("pipeline", "serve", "scripts", "tests", "docs")
KINDS = frozenset({".py", ".sh", ".cpp", ".h", ".html", ".css", ".js", ".txt", ".tsv", ".npy", ".json", ".md", ".typed"})
FILES = ("chattts_serve.py", "pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE", "NOTICE")
COMPILED = frozenset({".so", ".pyc"})
MAX_BYTES = 32 << 20  # of one file: nothing larger is source
PIECE = 1 << 16


@cache
def archive(root: Path) -> IO[bytes]:
    """Returns the .tar.gz of the program that was imported from `root`: a checkout, or the folder of installed packages.

    It is an open file without a name: an installed program has its demo voice in it, 30 MB.
    """
    is_checkout = (root / "pyproject.toml").is_file()
    return pack(checkout_files(root) if is_checkout else installed_files(distribution(PACKAGE).files or ()))


def checkout_files(root: Path) -> dict[str, Path]:
    """Returns name in the archive -> file, for a checkout with its tests and its documentation."""
    paths = [root / file for file in FILES]
    paths += [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in KINDS]
    return {str(path.relative_to(root)): path for path in paths}


def installed_files(files: Iterable[PackagePath]) -> dict[str, Path]:
    """Returns name in the archive -> file, for an installed wheel: all that builds that wheel.

    Its pyproject.toml, Makefile and README.md lie in share/, its licences beside its metadata; tests and docs/ are not in it,
    nor configurations that somebody has changed.
    """
    archive = {}
    for file in files:
        path = Path(str(file.locate()))
        is_own = file.parts[0] in FOLDERS or (file.parts[0] == "configs" and is_unchanged(file, path))
        if is_own and file.suffix not in COMPILED:
            archive[str(file)] = path
        elif file.name in FILES and file.parts[0] not in FOLDERS:
            archive[file.name] = path
    return archive


def is_unchanged(file: PackagePath, path: Path) -> bool:
    """Returns whether a file is as it was installed."""
    digest = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
    return file.hash is not None and file.hash.value == urlsafe_b64encode(digest).rstrip(b"=").decode()


def pack(files: dict[str, Path]) -> IO[bytes]:
    """Returns the .tar.gz of the files; the same files give the same bytes."""
    content = tempfile.TemporaryFile()  # noqa: SIM115
    with (
        gzip.GzipFile("", "wb", fileobj=content, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as packed,
    ):
        for name, path in sorted(files.items()):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_BYTES:
                entry = tarfile.TarInfo(f"{PACKAGE}/{name}")
                entry.size, entry.mode = path.stat().st_size, 0o755 if path.suffix == ".sh" else 0o644
                with path.open("rb") as source_file:
                    packed.addfile(entry, source_file)
    content.flush()
    return content


def pieces(packed: IO[bytes]) -> Iterator[bytes]:
    """Yields an archive; several readers may read it at once."""
    at = 0
    while piece := os.pread(packed.fileno(), PIECE, at):
        at += len(piece)
        yield piece


@cache
def digest(root: Path) -> str:
    """Returns the SHA-256 of the archive, in hexadecimal digits."""
    sha = hashlib.sha256()
    for piece in pieces(archive(root)):
        sha.update(piece)
    return sha.hexdigest()


@router.get("/source")
@open_to_all
def offer(services: RequestServices) -> dict[str, Any]:
    """Returns the name of this program, its licence and the address of its source."""
    offered = services.source_offer
    return {
        "name": NAME,
        "version": version(),
        "license": LICENCE,
        "url": offered.url or ARCHIVE,
        "commit": offered.commit,
        "sha256": digest(PROJECT),
    }


@router.get(ARCHIVE, response_class=StreamingResponse)
@open_to_all
def source() -> StreamingResponse:
    """Returns the source of the running program: the same bytes on every replica of one release."""
    packed = archive(PROJECT)
    length = {"Content-Length": str(os.fstat(packed.fileno()).st_size)}
    return StreamingResponse(pieces(packed), media_type="application/gzip", headers=length)
