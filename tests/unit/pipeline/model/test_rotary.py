"""The rotary tables are torch's to the last bit, where a seed's audio was made with torch's.

After a change of torch's library, which would be a change of audio: python -m tests.unit.pipeline.model.test_rotary
"""

import platform

import numpy as np
import pytest
import torch

from pipeline.model import gpt
from pipeline.model.cpu.rotary import BASE, FILE, LARGEST_HEAD, nearest, rotary_tables

POSITIONS = 4096


def of_torch(positions: int, head_dim: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    cos, sin = gpt.rotary_tables(positions, head_dim, base, torch.device("cpu"))
    return cos.numpy(), sin.numpy()


@pytest.mark.skipif(platform.machine() != "x86_64" or not torch.backends.mkl.is_available(), reason="torch without MKL")
@pytest.mark.parametrize(("positions", "head_dim"), [(POSITIONS, 64), (2048, 64), (576, 32)])
def test_the_tables_are_torchs(positions, head_dim):
    for ours, theirs in zip(rotary_tables(positions, head_dim, BASE), of_torch(positions, head_dim, BASE), strict=True):
        assert np.array_equal(ours.view(np.int32), theirs.view(np.int32))


@pytest.mark.parametrize(("positions", "head_dim", "base"), [(POSITIONS + 10, 64, BASE), (300, 64, 500_000.0), (300, 48, BASE)])
def test_any_other_model_has_tables_too(positions, head_dim, base):
    """To one bit of the largest angle: the last bit of a frequency is the processor's."""
    largest_angle_bit = float(np.spacing(np.float32(positions)))
    for ours, theirs in zip(rotary_tables(positions, head_dim, base), of_torch(positions, head_dim, base), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=largest_angle_bit)


def record() -> None:
    half = LARGEST_HEAD // 2
    misses = {
        name: (theirs[:, half:].view(np.int32) - ours.view(np.int32)).astype(np.int8)
        for name, ours, theirs in zip(
            ("cos", "sin"), nearest(POSITIONS, LARGEST_HEAD, BASE), of_torch(POSITIONS, LARGEST_HEAD, BASE), strict=True
        )
    }
    np.savez_compressed(FILE, **misses)


if __name__ == "__main__":
    record()
