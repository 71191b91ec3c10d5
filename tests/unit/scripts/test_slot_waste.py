"""Slot waste: what fixed slots cost is counted right at both ends."""

from dataclasses import replace

import numpy as np
import pytest

from scripts.evaluate.slot_waste import MOMENTS, PAGE, PROMPT_EXTRA, limit, used_positions, waste
from scripts.operate.gpu_sizes import card_named

H100 = card_named("NVIDIA H100")


def test_busy_slots_hold_long_sequences_more_often_and_none_beyond_its_slot():
    used = used_positions(16, np.random.default_rng(0))
    assert used.shape == (MOMENTS, 16)
    assert used.min() >= PROMPT_EXTRA
    assert used.max() <= 1536
    assert 100 < used.mean() < 300, "half of an utterance of some six seconds, and its prompt"


def test_most_of_a_fixed_slot_is_unused_and_pages_need_little_more_than_what_is_used():
    one, many = waste(16), waste(128)
    assert 0.5 < many.wasted < 1
    for found in (one, many):
        assert found.used_mib < found.paged_mib < found.reserved_mib
    assert many.paged_mib / many.used_mib < one.paged_mib / one.used_mib, "many slots even out"
    assert many.reserved_mib == 8 * one.reserved_mib
    assert PAGE == 16


def test_listeners_are_lost_where_memory_ends_before_time_does():
    roomy, tight = limit(H100, "dtype", 0.2), limit(replace(H100, memory_gib=8.0), "dtype", 0.2)
    assert (roomy.lost_in_time, roomy.lost_in_real_time) == (0.0, 0.0)
    assert tight.in_time == roomy.in_time
    assert tight.lost_in_time == pytest.approx(1 - tight.by_memory / min(tight.in_time, tight.by_memory_paged))
    assert tight.lost_in_time > 0.3
    assert limit(replace(H100, memory_gib=8.0), "int8", 0.2).by_memory > tight.by_memory
