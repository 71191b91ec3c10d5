"""Linear: a bias-free matrix product whose weight is packed once for the machine it runs on.

In:    x (M, in) in the weight's dtype
Out:   (M, out), same dtype
Owns:  the packed weight
Never: bias, training

On a CPU the weight is reordered once for the kernels of oneDNN. Measured with 2 AMX cores at (6144, 768) bfloat16:
packed reads 23-28 GB/s for every M from 1 to 16, unpacked 15. One M is one kernel and one order of summation, so a
row's bits depend on that row alone; another M may be another kernel, which is why callers keep M fixed.
"""

import torch


class Linear:
    """y = x @ weight.T"""

    def __init__(self, weight: torch.Tensor, *, rows: int) -> None:
        """
        Args:
            weight: (out, in), on its final device and in its final dtype.
            rows: the M this product is mostly called with; a hint for the packing, other M work too.
        """
        self._packed = weight.device.type == "cpu" and torch._C._has_mkldnn
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows) if self._packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed:
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
            return y
        return torch.nn.functional.linear(x, self._weight)
