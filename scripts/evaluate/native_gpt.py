"""Native Gpt: the native decoder with the interface of Gpt, to compare it with torch.

In:    tensors
Out:   tensors; the cache's are changed in place, as the decoder's arrays are the same memory
Owns:  nothing
Never: serving
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.model.cpu.native import Cache, NativeDecoder
from pipeline.model.gpt import ActiveExtent, KeysValues


class NativeGpt:
    """One decoder, seen from torch."""

    def __init__(self, decoder: NativeDecoder) -> None:
        self.decoder = decoder

    def __call__(
        self, x: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Advances slots: several by one position each, or one by consecutive positions."""
        arrays = tuple(map(as_array, cache))
        return torch.from_numpy(self.decoder(as_array(x), as_array(slots), as_array(positions), arrays))

    def decode(self, x: torch.Tensor, positions: torch.Tensor, cache: KeysValues, extent: ActiveExtent) -> torch.Tensor:
        """Advances every slot of the extent by one position, as Gpt.decode does."""
        used = slice(extent.slots)
        return self(x[used], torch.arange(extent.slots), positions[used], cache.tensors)

    def prefill(self, x: torch.Tensor, slots: torch.Tensor, last: torch.Tensor, cache: KeysValues) -> torch.Tensor:
        """Computes prompts, as Gpt.prefill does."""
        prompts = [as_array(prompt[: end + 1]) for prompt, end in zip(x, last.tolist(), strict=True)]
        return torch.from_numpy(self.decoder.prefill(prompts, slots.tolist(), tuple(map(as_array, cache.tensors))))

    def cache(self, *tensors: torch.Tensor) -> Cache:
        """Returns the cache as decode.cpp takes it."""
        return self.decoder.cache(*map(as_array, tensors))


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns an array of the same memory; bfloat16 becomes its bits."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    array: NDArray[Any] = tensor.numpy()
    return array
