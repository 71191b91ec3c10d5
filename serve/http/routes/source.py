"""Source API: offers the source of the running program.

In:    SourceOfferConfig; the archive of the source
Out:   JSON, an archive
"""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackagePath, distribution
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

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
FILES = ("pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE", "NOTICE")
MAX_BYTES = 32 << 20  # of one file: nothing larger is source


@cache
def archive(root: Path) -> bytes:
    """Returns the .tar.gz of the program that was imported from `root`: a checkout, or the folder of installed packages."""
    is_checkout = (root / "pyproject.toml").is_file()
    return pack(checkout_files(root) if is_checkout else installed_files(distribution(PACKAGE).files or ()))


def checkout_files(root: Path) -> dict[str, Path]:
    """Returns name in the archive -> file, for a checkout with its tests and its documentation."""
    paths = [root / file for file in FILES]
    paths += [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in KINDS]
    return {str(path.relative_to(root)): path for path in paths}


def installed_files(files: Iterable[PackagePath]) -> dict[str, Path]:
    """Returns name in the archive -> file, for an installed wheel.

    Its pyproject.toml, Makefile and README.md lie in share/, its licences beside its metadata; tests and docs/ are not in it.
    """
    archive = {}
    for file in files:
        if file.parts[0] in FOLDERS and file.suffix in KINDS:
            archive[str(file)] = Path(str(file.locate()))
        elif file.name in FILES and file.parts[0] not in FOLDERS:
            archive[file.name] = Path(str(file.locate()))
    return archive


def pack(files: dict[str, Path]) -> bytes:
    """Returns the .tar.gz of the files; the same files give the same bytes."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as packed:
        for name, path in sorted(files.items()):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_BYTES:
                entry = tarfile.TarInfo(f"{PACKAGE}/{name}")
                data = path.read_bytes()
                entry.size, entry.mode = len(data), 0o755 if path.suffix == ".sh" else 0o644
                packed.addfile(entry, io.BytesIO(data))
    return gzip.compress(content.getvalue(), mtime=0)


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
        "sha256": hashlib.sha256(archive(PROJECT)).hexdigest(),
    }


@router.get(ARCHIVE, response_class=Response)
@open_to_all
def source() -> Response:
    """Returns the source of the running program: the same bytes on every replica of one release."""
    return Response(archive(PROJECT), media_type="application/gzip")
