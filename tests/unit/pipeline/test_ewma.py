"""The running mean, counted by hand."""

import pytest

from pipeline.ewma import Ewma


def test_a_guess_gives_way_to_the_first_measurement_and_anything_else_counts():
    guessed, begun = Ewma(0.25, 8.0, is_guess=True), Ewma(0.25, 8.0)
    assert guessed.value == begun.value == 8.0
    for mean in (guessed, begun):
        mean.add(4.0)
    assert (guessed.value, begun.value) == (4.0, 7.0)
    for mean in (guessed, begun):
        mean.add(0.0)
    assert guessed.value == pytest.approx(3.0)
    assert begun.value == pytest.approx(5.25)
