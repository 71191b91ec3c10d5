"""The codes the demo voice is trained on: those of the quantiser that ChatTTS uses."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from vector_quantize_pytorch import GroupedResidualFSQ

from scripts.train_demo.codes import quantise


@given(st.integers(0, 2**31))
def test_codes_are_the_quantisers(seed):
    numbers = torch.randn(1, 40, 8, generator=torch.Generator().manual_seed(seed))
    quantiser = GroupedResidualFSQ(dim=8, levels=[5] * 4, num_quantizers=2, groups=2)
    indices = quantiser(numbers)[1].permute(1, 2, 0, 3).flatten(2)
    assert torch.equal(quantise(numbers), indices)
