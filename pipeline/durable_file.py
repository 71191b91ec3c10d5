"""Durable files: whole after a power cut, or absent.

In:    bytes, a path
Out:   a file with these bytes under its own name, on disk
Never: a half-written file under its own name
"""

import os
import tempfile
from pathlib import Path


def write_durably(path: Path, content: bytes, *, mode: int) -> None:
    """Writes or replaces a file atomically; returns when it is on disk.

    Args:
        mode: its permissions, whatever the umask.

    Raises:
        OSError: the file is as it was before.
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
    """Writes the names in the folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
