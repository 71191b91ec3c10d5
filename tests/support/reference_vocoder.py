"""Slow twin of the vocoder: the whole utterance in one shape of its own. No windows, no stream, no batch, no thread."""

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.spec import HOP
from pipeline.vocoder.windowed.network import Network


def decode_whole(network: Network, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """All samples of an utterance of n steps: ((2n - 1) * 256,)."""
    with torch.inference_mode():
        samples = network(torch.from_numpy(rows)[None], torch.tensor([[0, len(rows)]]))
    return samples[0, : samples.shape[1] - HOP].numpy()
