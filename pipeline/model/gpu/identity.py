"""Identity: everything about a GPU by which libraries choose their kernels, and so the last bits of a sum.

In:    the GPU that this process sees
Out:   one line for the engine's fingerprint
Never: how fast or how full it is
"""

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch

DRIVER_FILE = Path("/proc/driver/nvidia/version")
UNKNOWN = "unknown"
SWITCHES = ("TORCH_CUDNN_", "TORCH_BLAS_", "TORCH_ALLOW_TF32_", "NVIDIA_TF32_OVERRIDE", "CUBLAS", "CUDNN_")
"""beginnings of their names"""


def gpu_identity() -> str:
    """Returns the GPU's name, capability and number of multiprocessors, the versions of CUDA, cuBLAS, cuDNN and the driver, and
    the switches of the environment by which these libraries choose other kernels.

    A slice of a GPU (MIG, MPS) has the same name and fewer multiprocessors, for which cuBLAS chooses other kernels.
    """
    properties = torch.cuda.get_device_properties(0)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    libraries = f"cublas {cublas_version(torch.version.cuda)} cudnn {cudnn} driver {driver_version()}"
    chosen = "".join(f" {name}={value}" for name, value in sorted(switches(os.environ).items()))
    return (
        f"{properties.name} ({properties.major}, {properties.minor}) multiprocessors {properties.multi_processor_count} "
        f"cuda {torch.version.cuda} {libraries}{chosen}"
    )


def switches(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables by which NVIDIA's libraries, or torch, choose among kernels."""
    return {name: value for name, value in environment.items() if name.startswith(SWITCHES)}


def cublas_version(cuda: str | None) -> str:
    """Returns the version of the cuBLAS that torch has loaded, as its own number such as 130002; `unknown` without one."""
    try:
        library = ctypes.CDLL(f"libcublasLt.so.{(cuda or '').split('.')[0]}")
    except OSError:
        return UNKNOWN
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return str(library.cublasLtGetVersion())


def driver_version(file: Path = DRIVER_FILE) -> str:
    """Returns the version of NVIDIA's kernel driver, such as 580.65.06; `unknown` without one."""
    try:
        match = re.search(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)*)\s", file.read_text())
    except OSError:
        return UNKNOWN
    return match[1] if match else UNKNOWN
