"""Upload reader: decodes a recording from a client in a separate process.

In:    the bytes of a file
Out:   Reference, or the refusal of pipeline/voices/reference.py
Owns:  the number of recordings that are read at this moment
Never: decoding in this process: a decoder that crashes, hangs or runs out of memory must not end the service
"""

import json

import numpy as np

from pipeline.child import ChildFailed, ask_child
from pipeline.errors import AtCapacity, ReferenceRejected, UnsupportedFormat
from pipeline.voices.reference import Reference, Report

READER = "pipeline.voices.reference"
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
        return await ask_child(READER, content, timeout_s=READ_TIMEOUT_S)
    except TimeoutError:
        raise _undecodable(f"{READ_TIMEOUT_S:g} s") from None
    except ChildFailed:
        raise _undecodable("its limits of memory and time") from None
    except OSError as error:  # no more file descriptors, processes or memory
        raise AtCapacity(
            f"no recording can be read at this moment ({error.strerror}); try again", retry_after_s=NO_CHILD_RETRY_S
        ) from error


def _undecodable(limit: str) -> ReferenceRejected:
    return ReferenceRejected(f"the recording could not be decoded within {limit}", param="audio_sample")
