"""In torch: a checkpoint's arrays as torch's tensors.

In:    one part of a checkpoint (weights.py)
Out:   the same numbers in the same memory, as tensors
Never: copies
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray


def in_torch(arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, torch.Tensor]:
    """Returns the tensors, under the same names, on the CPU."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
