"""Out of memory: one sentence for each of the ways in which a process is told that there is no more.

In:    what is loaded, what to do where it does not fit
Out:   OutOfMemory in place of the errors of the system, of torch and of CUDA
Owns:  nothing
Never: how much there is: the system may kill a process that was given all it asked for
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import OutOfMemory

SIGNS = ("allocate memory", "out of memory", "start new thread")
"""of RuntimeErrors: torch on a CPU, torch on a GPU, Python without room for a thread's stack"""


@contextmanager
def named_out_of_memory(what: str, do: str) -> Iterator[None]:
    """Say what did not fit, and what to do.

    Raises:
        OutOfMemory: for any error inside that means it; others are raised as they are.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error) or type(error).__name__
        raise OutOfMemory(f"{what} does not fit into the memory this process may have ({reason}): {do}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it means that there is no more memory."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
