"""Reserve: disk space that is kept back for the day the disk is full.

In:    a path beside a file
Out:   that space, released for one change and taken again
Owns:  the file at that path
Never: data: the content of the file has no meaning
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RESERVE_BYTES = 256 << 10  # a change of one record, whatever its size, journals some ten pages of 4 KiB


class Reserve:
    """A file that occupies disk space. Several processes may share it."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size

    def is_kept(self) -> bool:
        """Returns True if the space is occupied; first occupies it if it is free and the disk has it."""
        return self._is_whole() or self._take()

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Releases the space until the block ends."""
        self._path.unlink(missing_ok=True)
        try:
            yield
        finally:
            self._take()

    def _is_whole(self) -> bool:
        try:
            return self._path.stat().st_size >= self._size
        except FileNotFoundError:
            return False

    def _take(self) -> bool:
        try:
            self._path.write_bytes(os.urandom(self._size))  # random, so that no file system can compress it
        except OSError:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return False
        return True
