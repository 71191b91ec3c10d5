"""Uniforms: the randomness of SeedMode.COUNTER, a pure function of the request and the place.

In:    a request's seed and attempt, a segment's number
Out:   numbers between 0 and 1
Never: torch, the draw (sampling.py, pipeline/model/cpu/draw.h)
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.spec import CODEBOOKS
from pipeline.types import Head, SamplingParams


def counter_uniforms(params: SamplingParams, head: Head, segment: int, steps: int) -> NDArray[np.float32]:
    """Returns the COUNTER uniforms of one sequence: element (step, codebook) is a pure function of the key and its index.

    Returns:
        (steps, 4) float32 in (0, 1); a TEXT sequence uses the first column.
    """
    stream = (segment << 32) | (params.attempt << 1) | (head is Head.TEXT)
    words = np.random.Philox(key=np.array([params.seed, stream], dtype=np.uint64)).random_raw(steps * CODEBOOKS)
    # 23 bits and a half: exactly representable, never 0 and never 1
    uniforms = ((words >> np.uint64(41)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return uniforms.reshape(steps, CODEBOOKS)
