"""Device memory: measures how full a GPU's memory is.

In:    a device's name
Out:   percent
Never: allocating
"""

from pipeline.with_torch import torch_part


def gpu_mem_percent(device: str) -> float | None:
    """Returns the share of the GPU's memory that is in use, by any process [%]; None unless `device` is cuda."""
    if device != "cuda":
        return None
    free, total = torch_part("torch", wanted_for="device cuda").cuda.mem_get_info()
    return round(100 * (1 - float(free) / float(total)), 1)
