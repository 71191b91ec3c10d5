"""Muon: an optimiser for matrices, whose steps are nearly orthogonal.

In:    gradients of matrices
Out:   updated matrices
Owns:  the momentum
Never: other parameters

torch.optim.Muon computes in bfloat16, which takes fifty times as long where a CPU has no instructions for it. This one
computes in the number format that it is given, and matrices of the same shape together. Source: Jordan et al., https://kellerjordan.github.io/posts/muon/.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; the step of a tall matrix is longer by the root of its shape's ratio."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, weight_decay: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Updates every matrix that has a gradient."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault(matrix.shape, []).append(matrix)
            for matrices in alike.values():
                self._update(matrices, group["lr"], group["weight_decay"])

    def _update(self, matrices: list[Tensor], rate: float, decay: float) -> None:
        steps = orthogonal(torch.stack([self._momentum(matrix).to(self._dtype) for matrix in matrices]))
        for matrix, step in zip(matrices, steps, strict=True):
            longer = math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1]))
            matrix.mul_(1 - rate * decay).add_(step, alpha=-rate * longer)

    def _momentum(self, matrix: Tensor) -> Tensor:
        state, gradient = self.state[matrix], matrix.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        state["momentum_buffer"].lerp_(gradient, 1 - MOMENTUM)
        step: Tensor = gradient.lerp(state["momentum_buffer"], MOMENTUM)
        return step


def orthogonal(matrices: Tensor) -> Tensor:
    """Returns matrices (n, rows, columns) with about the same singular vectors, and singular values near 1."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    first, third, fifth = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = first * x + (third * square + fifth * square @ square) @ x
    return x.mT if is_tall else x
