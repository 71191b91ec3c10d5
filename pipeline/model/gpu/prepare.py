"""Prepare: what a process does once before it computes on a GPU.

In:    the GPU's capability; the shapes and the number format of the matrix products to come
Out:   ConfigError, or nothing
Owns:  the process-wide settings of cuBLAS and of torch's attention
Never: models, graphs

cuBLAS chooses its kernels by the number of multiprocessors it sees, and has chosen wrong ones for some numbers, as a slice of a
GPU has them. So each start multiplies matrices of the model's shapes and compares them with float64, which takes milliseconds.
"""

from collections.abc import Iterable

import torch

from pipeline.errors import ConfigError

LEAST_CAPABILITY = (8, 0)
"""Ampere: older GPUs have no tensor cores for bfloat16, and Triton compiles int8 products for them without tensor cores"""
Shapes = tuple[tuple[int, int], ...]
GPT_SHAPES: Shapes = ((2304, 768), (768, 768), (6144, 768), (768, 3072))
"""outputs and inputs of the products of ChatTTS's layers"""
VOCODER_SHAPES: Shapes = ((1536, 512), (512, 1536), (2048, 512), (512, 2048))
"""of the pointwise layers of its ConvNeXt blocks"""
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""largest difference to float64, as a part of the product's root mean square"""


def prepare_gpu(*, rows: Iterable[int], dtype: torch.dtype, shapes: Shapes = GPT_SHAPES) -> None:
    """Refuses a GPU that cannot run the model, sets up its libraries, and tests products; call it before anything is recorded.

    Args:
        rows: numbers of rows of the products to come: slots, and positions of a prefill; frames of a vocoder's windows.
        dtype: of the products, besides float32.
        shapes: outputs and inputs of their weights.

    Raises:
        ConfigError: the GPU is too old, or its products are wrong.
    """
    refuse_old(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    # Otherwise partial sums may be kept in bfloat16, for some numbers of rows and not for others.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    # cuDNN's attention builds a plan for each shape of a prefill, 0.4 s each, on the thread that everybody's rounds wait for.
    torch.backends.cuda.enable_cudnn_sdp(False)
    for number in sorted(set(rows)):
        refuse_wrong_products(torch.device("cuda"), rows=number, dtype=dtype, shapes=shapes)


def refuse_old(name: str, capability: tuple[int, int]) -> None:
    """Raises:
    ConfigError: a GPU of this capability cannot run the model.
    """
    if capability < LEAST_CAPABILITY:
        raise ConfigError(
            f"{name} has compute capability {capability[0]}.{capability[1]}; the service needs at least "
            f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} (Ampere, such as A10, A100, RTX 30, or newer): "
            "set engine.device and vocoder.device to cpu, or use another GPU"
        )


def refuse_wrong_products(device: torch.device, *, rows: int, dtype: torch.dtype, shapes: Shapes = GPT_SHAPES) -> None:
    """Raises:
    ConfigError: a product of random matrices is further from float64 than rounding explains.
    """
    for number_format in {torch.float32, dtype}:  # heads and vocoder are float32 always
        for outputs, inputs in shapes:
            error = product_error(device, rows, outputs, inputs, number_format)
            if not error <= TOLERANCES[number_format]:
                raise ConfigError(
                    f"matrix products are wrong on this GPU: ({rows}, {inputs}) times ({inputs}, {outputs}) in "
                    f"{str(number_format).removeprefix('torch.')} differs by {error:.2g} of its size, at most "
                    f"{TOLERANCES[number_format]:g} is rounding; change engine.slots, the GPU's "
                    "partition (MIG, MPS) or its driver"
                )


def product_error(device: torch.device, rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> float:
    """Returns the largest difference of a random product to float64, as a part of the product's root mean square."""
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(size, inputs, generator=generator).to(device, dtype) for size in (rows, outputs))
    exact = x.double() @ weight.double().T
    difference = torch.nn.functional.linear(x, weight).double() - exact
    return float(difference.abs().max() / exact.square().mean().sqrt())
