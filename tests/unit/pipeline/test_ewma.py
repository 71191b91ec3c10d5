"""The running mean, counted by hand."""

import pytest

from pipeline.ewma import ClippedEwma, Ewma


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


def test_a_clipped_mean_begins_with_its_first_measurement_and_bounds_every_other():
    mean = ClippedEwma(0.5, 0.0, most_times=4.0)
    for measured, value in ((0.0, 0.0), (2.0, 2.0), (1000.0, 5.0), (1.0, 3.0)):
        mean.add(measured)
        assert mean.value == value
    assert ClippedEwma(0.5, 1.0, most_times=4.0).value == 1.0
