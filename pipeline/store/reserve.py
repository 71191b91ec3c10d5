"""Reserve: room on the disk that is kept for the day it is full.

In:    a place beside a file
Out:   that room, given back to the disk for one change and taken again
Owns:  the file at that place
Never: the only copy of anything: what is in it means nothing
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RESERVE_BYTES = 256 << 10  # a change of one record, whatever its size, journals some ten pages of 4 KiB


class Reserve:
    """A file that takes room away from others. Several processes may share it."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size

    def is_kept(self) -> bool:
        """Whether the room is taken; takes it where it is not yet and the disk has it."""
        return self._is_whole() or self._take()

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """The disk has that much more room until the block ends."""
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
            self._path.write_bytes(os.urandom(self._size))  # nothing that a file system could store as less
        except OSError:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return False
        return True
