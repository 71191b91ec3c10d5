"""Child: what a module answers to some bytes, in a process of its own.

In:    the name of a module, bytes for its standard input
Out:   the bytes of its standard output
Owns:  the process, until it has answered or timed out
Never: reading untrusted bytes in this process: a reader that crashes, hangs or needs too much memory ends alone
"""

import asyncio
import contextlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]


class ChildFailed(Exception):
    """The process crashed, or reached its limits of memory and time."""


async def ask_child(module: str, content: bytes, *, timeout_s: float) -> bytes:
    """Returns the answer of a module that is run as a program.

    Raises:
        ChildFailed
        TimeoutError
        OSError: no process can be started now.
    """
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module), cwd=FOLDER, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(timeout_s):
            answer, _ = await child.communicate(content)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    if child.returncode != 0:
        raise ChildFailed
    return answer
