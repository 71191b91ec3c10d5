"""Out of memory: one error in place of the many by which a system reports that memory has run out.

In:    what is loaded, and advice for the case that it does not fit
Out:   OutOfMemory in place of the errors of the system, of torch and of CUDA
Never: how much memory there is: the system may kill a process even after it granted the memory
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import OutOfMemory

SIGNS = ("allocate memory", "out of memory", "out_of_memory", "alloc_failed", "allocation_failed", "start new thread")
"""parts of RuntimeErrors' texts, in lower case: torch on a CPU, torch on a GPU, the driver, cuBLAS and cuDNN, a host's pinned
memory, Python without room for a thread's stack"""


@contextmanager
def named_out_of_memory(subject: str, do: str) -> Iterator[None]:
    """Replaces out-of-memory errors inside the block by one that says what did not fit and what to do.

    Args:
        subject: the thing that is loaded.
        do: the advice.

    Raises:
        OutOfMemory: in place of an error that means it; other errors pass unchanged.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error) or type(error).__name__
        raise OutOfMemory(f"{subject} does not fit into the memory this process may have ({reason}): {do}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Returns True if the error means that memory has run out."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)
