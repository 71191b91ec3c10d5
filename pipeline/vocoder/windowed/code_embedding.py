"""CodeEmbedding: turns the four codes of a step into the input of the DVAE's mel decoder (`use_decoder: false`).

In:    codes (B, R, 4), whole numbers in float32
Out:   embeddings (B, R, width) float32
Owns:  its weights
Never: mel frames

A code of 0..624 is four digits of base 5, lowest first; a digit 0..4 stands for -1, -0.5, 0, 0.5, 1. Codes 2g and
2g + 1 belong to group g: the second refines the first, on a smaller scale. Their sum, four numbers, is projected
to the group's part of the embedding.

Source: ChatTTS/model/dvae.py, class GFSQ (`_embed`); vector_quantize_pytorch, GroupedResidualFSQ.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.checkpoint.layout import RESIDUAL_SCALES, VQ_GROUPS, VQ_LEVELS, below


class CodeEmbedding:
    """The decoding half of the quantiser: codes to embeddings."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._projections = [  # per group: weight (width / groups, digits), bias (width / groups,)
            (group["weight"], group["bias"])
            for index in range(VQ_GROUPS)
            for group in [below(tensors, f"vq_layer.quantizer.rvqs.{index}.project_out.")]
        ]
        device = self._projections[0][0].device
        self._levels = torch.tensor(VQ_LEVELS, device=device)
        self._place_values = self._levels.cumprod(0) // self._levels  # 1, 5, 25, 125
        self._residual_scales = torch.tensor(RESIDUAL_SCALES, device=device)

    def __call__(self, codes: Tensor) -> Tensor:
        """Returns the embeddings (B, R, width) of codes (B, R, codebooks)."""
        values = self._values(codes)
        groups = [self._refined(codes_of_group) for codes_of_group in values.chunk(VQ_GROUPS, dim=2)]
        return torch.cat([F.linear(group, *own) for group, own in zip(groups, self._projections, strict=True)], dim=-1)

    def _values(self, codes: Tensor) -> Tensor:
        """Returns codes (...) as digits (..., digits), -1 .. 1."""
        digits = codes.long().unsqueeze(-1) // self._place_values % self._levels
        middle = self._levels // 2
        return (digits - middle) / middle

    def _refined(self, values: Tensor) -> Tensor:
        """Returns the sum (B, R, digits) of one group's codes (B, R, refinements, digits), each on its own scale."""
        total = values[:, :, 0]
        for refinement in range(1, values.shape[2]):
            total = total + values[:, :, refinement] * self._residual_scales**refinement
        return total
