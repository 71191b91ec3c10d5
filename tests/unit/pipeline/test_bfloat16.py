"""Bfloat16 in numpy: torch's, to the last bit."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bfloat16 import rounded, widened


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_any_number_is_rounded_as_torch_rounds_it(words):
    numbers = np.array(words, np.uint32).view(np.float32)
    theirs = torch.from_numpy(numbers).bfloat16()
    is_number = ~np.isnan(numbers)
    assert np.array_equal(rounded(numbers)[is_number], theirs.view(torch.int16).numpy().view(np.uint16)[is_number])
    assert np.isnan(widened(rounded(numbers))[~is_number]).all(), "what is no number stays none"


def test_of_two_equally_near_ones_the_even_one_is_taken():
    between = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)
    assert rounded(between).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80]


def test_every_bfloat16_comes_back():
    words = np.arange(2**16).astype(np.uint16)
    numbers = widened(words)
    is_number = ~np.isnan(numbers)
    assert np.array_equal(rounded(numbers)[is_number], words[is_number])
    assert np.array_equal(
        numbers[is_number], torch.from_numpy(words.view(np.int16)).view(torch.bfloat16).float().numpy()[is_number]
    )
