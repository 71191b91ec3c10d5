"""Upload reader: decodes a recording from a client in a separate process.

In:    the bytes of a file
Out:   Reference, or the refusal of pipeline/voices/reference.py
Owns:  the process, until it has answered or timed out
Never: decoding in this process: a decoder that crashes, hangs or runs out of memory must not end the service
"""

import asyncio
import contextlib
import json
import sys

import numpy as np

from pipeline.errors import AtCapacity, ReferenceRejected, UnsupportedFormat
from pipeline.voices.reference import Reference, Report
from serve.config.app_config import PROJECT

READ_TIMEOUT_S = 30.0
NO_CHILD_RETRY_S = 5.0
AT_ONCE = 2  # recordings in one ingress replica
REFUSALS = {kind.__name__: kind for kind in (ReferenceRejected, UnsupportedFormat)}


class UploadReader:
    """Decodes recordings, a few at a time."""

    def __init__(self) -> None:
        self._reading = 0

    async def read(self, content: bytes) -> Reference:
        """Decodes a recording and checks that it can be used as a reference.

        Raises:
            ReferenceRejected, UnsupportedFormat
            AtCapacity: others are being read, or the machine has no room for a process.
        """
        if self._reading >= AT_ONCE:
            raise AtCapacity(f"{AT_ONCE} recordings are being read; wait for one", retry_after_s=2.0)
        self._reading += 1
        try:
            answer = await _ask_child(content)
        finally:
            self._reading -= 1
        head, _, samples = answer.partition(b"\n")
        report = json.loads(head)
        if "refused" in report:
            raise REFUSALS[report["refused"]](report["message"], param="audio_sample")
        return Reference(np.frombuffer(samples, "<f4").astype(np.float32), Report(**report))


async def _ask_child(content: bytes) -> bytes:
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pipeline.voices.reference"),
            cwd=PROJECT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:  # no more file descriptors, processes or memory
        raise AtCapacity(
            f"no recording can be read at this moment ({error.strerror}); try again", retry_after_s=NO_CHILD_RETRY_S
        ) from error
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            answer, _ = await child.communicate(content)
    except TimeoutError:
        raise ReferenceRejected(
            f"the recording could not be decoded within {READ_TIMEOUT_S:g} s", param="audio_sample"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    if child.returncode != 0:
        raise _undecodable("its limits of memory and time")
    return answer


def _undecodable(limit: str) -> ReferenceRejected:
    return ReferenceRejected(f"the recording could not be decoded within {limit}", param="audio_sample")
