"""Encode apart: encodes a recording in a short-lived process, so that no serving process loads torch for it.

In:    samples (m,) float32, 24 kHz; a checkpoint's folder
Out:   codes (n, 4) int64
Never: torch, except in that process
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import open_checkpoint
from pipeline.child import ChildFailed, ask_child
from pipeline.errors import AtCapacity, EngineFault, ReferenceRejected
from pipeline.spec import CODEBOOKS
from pipeline.with_torch import INSTALL, has_torch, torch_part

TIMEOUT_S = 120.0
RETRY_S = 2.0
WANTED_FOR = "encoding a recording"


async def encode_apart(root: Path, samples: NDArray[np.float32]) -> NDArray[np.int64]:
    """Returns the codes of a recording.

    Args:
        root: the checkpoint's folder.

    Raises:
        ReferenceRejected: PyTorch is not installed here.
        AtCapacity: the machine has no room for a process.
        EngineFault: the process failed or took too long.
    """
    if not has_torch():
        raise ReferenceRejected(
            "this service cannot clone a voice from a recording, because PyTorch is not installed where it runs; voices from a "
            f"seed, a blend or an embedding need none. Its operator can add it: {INSTALL}",
            param="audio_sample",
        )
    try:
        answer = await ask_child(
            "pipeline.vocoder.encode_apart", f"{root}\n".encode() + samples.astype("<f4").tobytes(), timeout_s=TIMEOUT_S
        )
    except TimeoutError:  # an OSError, too
        raise EngineFault(f"a recording was not encoded within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise AtCapacity(
            f"no recording can be encoded at this moment ({error.strerror}); try again", retry_after_s=RETRY_S
        ) from error
    except ChildFailed as error:
        raise EngineFault("a recording could not be encoded: its process crashed") from error
    return np.frombuffer(answer, "<i8").reshape(-1, CODEBOOKS).astype(np.int64)


def main() -> None:
    """Reads a checkpoint's folder, a line, and samples, float32; writes the codes, int64."""
    encoder = torch_part("pipeline.vocoder.reference_encoder", wanted_for=WANTED_FOR)
    in_torch = torch_part("pipeline.checkpoint.in_torch", wanted_for=WANTED_FOR).in_torch
    root, _, content = sys.stdin.buffer.read().partition(b"\n")
    tensors = in_torch(open_checkpoint(Path(root.decode())).dvae())
    samples = np.frombuffer(content, "<f4")
    sys.stdout.buffer.write(encoder.ReferenceEncoder(tensors).encode_alone(samples).astype("<i8").tobytes())


if __name__ == "__main__":
    main()
