"""Device: how full a GPU's memory is.

In:    a device's name
Out:   percent
Owns:  nothing
Never: allocating
"""

import torch


def gpu_mem_percent(device: str) -> float | None:
    """Of all memory of the GPU, whoever holds it; None where there is no GPU."""
    if device != "cuda":
        return None
    free, total = torch.cuda.mem_get_info()
    return round(100 * (1 - free / total), 1)
