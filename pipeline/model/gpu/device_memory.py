"""Device memory: measures how full a GPU's memory is.

In:    a device's name
Out:   percent
Owns:  nothing
Never: allocating
"""

import torch


def gpu_mem_percent(device: str) -> float | None:
    """Returns the share of the GPU's memory that is in use, by any process [%]; None unless `device` is cuda."""
    if device != "cuda":
        return None
    free, total = torch.cuda.mem_get_info()
    return round(100 * (1 - free / total), 1)
