"""Devices: the precision that each kind of device trains in.

In:    a device's name, as torch has it
Out:   settings of torch
Owns:  nothing
Never: memory
"""

import torch


def allow_tf32() -> None:
    """Lets a GPU multiply single precision in TF32, in convolutions too."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def autocast(device: str) -> torch.autocast:
    """Returns the block in which a GPU computes in bfloat16, and a CPU as it would."""
    return torch.autocast(device.split(":")[0], torch.bfloat16, enabled=device != "cpu")
