"""Durable: files that are whole after a power cut, or not there.

In:    bytes, a place
Out:   a file with these bytes under its own name, on disk
Owns:  nothing
Never: a half-written file under its own name
"""

import os
import tempfile
from pathlib import Path


def write_durably(path: Path, content: bytes, *, mode: int) -> None:
    """Put a file in place, or in the place of another, at once; returns when it is on disk.

    Args:
        mode: its permissions, whatever the umask.

    Raises:
        OSError: what was there is still there.
    """
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Names in it are on disk once this returns."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
