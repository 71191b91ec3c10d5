"""Disk: what a file that cannot be written means to a client.

In:    OSError
Out:   StoreFull, StoreUnavailable
Never: a refusal that asks for a repetition while the disk is full
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StoreFull, StoreUnavailable
from serve.errors import DISK_FULL

WAITING_FOR_DISK = "disk"


def is_full(error: BaseException) -> bool:
    """True if a file cannot be written before somebody frees space, or raises a quota; whoever says so last."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and is_full(cause)


@contextmanager
def writing(content: str, folder: Path) -> Iterator[None]:
    """Makes a failure to write a refusal.

    Args:
        content: what is written, in words.

    Raises:
        StoreFull, StoreUnavailable
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise StoreFull(f"{content} cannot be kept: the disk is full; delete jobs", place=str(folder)) from error
        raise StoreUnavailable(f"{content} cannot be written: {error.strerror}; try again", place=str(folder)) from error
