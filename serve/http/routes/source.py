"""Source API: where the source of what runs here is.

In:    SourceOfferConfig; the project's own files
Out:   JSON, an archive
Owns:  the archive once somebody has asked for it
Never: configuration, manifests, keys: what an operator wrote is not the program
"""

import gzip
import hashlib
import io
import tarfile
from functools import cache
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
FOLDERS = ("pipeline", "serve", "scripts", "tests")
KINDS = frozenset({".py", ".sh", ".cpp", ".h", ".html", ".txt", ".tsv", ".npy", ".json"})
FILES = ("pyproject.toml", "Makefile", "README.md", "LICENSE", "NOTICE")
MOST_BYTES = 32 << 20  # of one file: nothing larger is source


router = APIRouter()


@router.get("/source")
@open_to_all
def offer(services: RequestServices) -> dict[str, Any]:
    """Which program this is, under which licence, and where its source is."""
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
    """The source as it lies beside the running program: the same bytes on every replica of one release."""
    return Response(archive(PROJECT), media_type="application/gzip")


@cache
def archive(root: Path) -> bytes:
    """The program's files, packed the same way each time."""
    paths = [root / file for file in FILES]
    paths += [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in KINDS]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as packed:
        for path in sorted(paths):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= MOST_BYTES:
                entry = tarfile.TarInfo(f"chattts-serve/{path.relative_to(root)}")
                data = path.read_bytes()
                entry.size, entry.mode = len(data), 0o755 if path.suffix == ".sh" else 0o644
                packed.addfile(entry, io.BytesIO(data))
    return gzip.compress(content.getvalue(), mtime=0)
