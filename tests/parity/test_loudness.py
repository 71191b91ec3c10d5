"""Loudness: the same as pyloudnorm measures, within what its filter costs."""

import pyloudnorm
import pytest

from pipeline.audio.loudness import integrated_loudness
from tests.support.sounds import RATE, speech


@pytest.mark.parametrize("rate", [16_000, 24_000, 48_000])
@pytest.mark.parametrize("blocks", [1, 2, 7, 40])
def test_pyloudnorm_measures_the_same(rate, blocks):
    """pyloudnorm's filter has other coefficients, which cost it up to 0.13 LU, and it gates a last block that is not whole."""
    tones = speech(RATE * 8)[: round(0.1 * rate) * (blocks + 3)]
    assert integrated_loudness(tones, rate) == pytest.approx(
        pyloudnorm.Meter(rate).integrated_loudness(tones.astype(float)), abs=0.2
    )
