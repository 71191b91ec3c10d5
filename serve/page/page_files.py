"""Page files: the studio in a browser, as it lies in the package, ready to be sent.

In:    the folder page/: HTML, CSS and ES modules without a build
Out:   each file with its type, the version that stands in their addresses, the headers of the document
Owns:  the files, once they have been read
Never: a file outside the folder
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("studio")
DOCUMENT = "index.html"
VERSION = "{version}"
"""in the document: what its files have in their addresses"""
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin"}
DOCUMENT_HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", **SECURITY}
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    content: bytes
    media_type: str


@cache
def page_files() -> dict[str, PageFile]:
    """Returns path below the folder, with slashes -> file."""
    paths = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in TYPES]
    return {path.relative_to(FOLDER).as_posix(): PageFile(path.read_bytes(), TYPES[path.suffix]) for path in paths}


@cache
def version() -> str:
    """Returns a name for the content of all files: other content has another one."""
    digest = hashlib.sha256()
    for path, file in page_files().items():
        digest.update(f"{path}\n{len(file.content)}\n".encode() + file.content)
    return digest.hexdigest()[:12]


@cache
def document() -> bytes:
    """Returns the HTML, whose addresses are relative and lead to this version of its files."""
    return page_files()[DOCUMENT].content.replace(VERSION.encode(), version().encode())
