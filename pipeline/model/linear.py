"""Linear: a bias-free matrix product, y = x @ weight.T, in the form that is fastest on this machine.

In:    x (M, in)
Out:   (M, out), same dtype
Owns:  the weight, packed or rounded
Never: bias, training

There are three: Linear; QuantisedLinear, for int8 weights in torch; and Int8Product in
pipeline/model/gpu/kernels/product.py, for int8 weights on a GPU.

On a CPU with AVX-512 Linear reorders its weight once for the kernels of oneDNN. Measured with 2 AMX cores at (6144, 768)
bfloat16: packed reads 23-28 GB/s for every M from 1 to 16, unpacked 15. One M is one kernel and one order of summation, so a
row's bits depend on that row alone; another M may be another kernel, which is why callers keep M fixed.
Where oneDNN has no kernels of the dtype for this CPU, the weight stays as it is and torch's own product is used.
"""

from abc import ABC, abstractmethod

import torch

from pipeline.model.quantise import quantise


class Product(ABC):
    """y = x @ weight.T"""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns y (M, out) for x (M, in), in the dtype of x."""

    def summands(self, x: torch.Tensor) -> torch.Tensor:
        """Returns P summands (P, M, out) of y: cheaper where the caller adds y to something anyway."""
        return self(x).unsqueeze(0)


class Linear(Product):
    """A product with the weight in the dtype of x."""

    def __init__(self, weight: torch.Tensor, *, rows: int) -> None:
        """
        Args:
            weight: (out, in), on its final device and in its final dtype.
            rows: the usual M, a hint for the packing; any other M works too.
        """
        self._packed = weight.device.type == "cpu" and _can_pack(weight.dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows) if self._packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed:
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
            return y
        return torch.nn.functional.linear(x, self._weight)


def _can_pack(dtype: torch.dtype) -> bool:
    """Returns True if oneDNN packs this dtype here, and multiplies every row alike.

    Its kernels for AVX2 take six rows at a time and the rest by another order of summation: of eight equal rows the last two
    differ in their last bits, so a sequence's audio would depend on its slot. torch's own product has no such rest.
    """
    if not torch._C._has_mkldnn or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True


class QuantisedLinear(Product):
    """A product with int8 weights and one scale per output, summed in float32: the slow twin of the GPU's kernel."""

    def __init__(self, weight: torch.Tensor) -> None:
        """
        Args:
            weight: (out, in) floating, on its final device.
        """
        self._weight, self._scales = quantise(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.linear(x.float(), self._weight.float()) * self._scales).to(x.dtype)
