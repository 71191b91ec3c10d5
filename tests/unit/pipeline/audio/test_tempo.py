"""Time-stretch: exact length, same pitch, independent of the cuts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio.tempo import Stretch, share_speed
from tests.support.effort import examples

RATE = 24_000
SPEEDS = [0.25, 0.3, 0.5, 0.8, 0.99, 1.01, 1.5, 2.0, 2.5, 4.0]


def tone(samples: int, hertz: float = 440.0) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(samples) / RATE)).astype(np.float32)


def stretched(samples, speed, cuts=()):
    stretch = Stretch(speed)
    return np.concatenate([*(stretch.feed(piece) for piece in np.split(samples, sorted(cuts))), stretch.finish()])


def test_speed_one_is_every_bit():
    samples = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    samples[7] = np.float32(1e-42)
    stretch = Stretch(1.0)
    assert stretch.feed(samples) is samples
    assert len(stretch.finish()) == 0


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("length", [0, 1, 100, 511, 513, 12_345, 60_000])
def test_lengths_are_exact(speed, length):
    out = stretched(tone(length), speed)
    assert len(out) == round(length / speed)
    assert out.dtype == np.float32
    assert np.isfinite(out).all()


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_pitch_stays(speed):
    out = stretched(tone(2 * RATE), speed)
    spectrum = np.abs(np.fft.rfft(out * np.hanning(len(out))))
    assert np.fft.rfftfreq(len(out), 1 / RATE)[spectrum.argmax()] == pytest.approx(440, rel=0.01)


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_loudness_stays_to_the_end(speed):
    out = stretched(tone(2 * RATE), speed)
    for part in np.array_split(out, 20)[:-1]:
        assert np.abs(part).max() == pytest.approx(0.3, rel=0.25)
    assert np.abs(np.array_split(out, 20)[-1]).max() == pytest.approx(0.3, rel=0.25)


@pytest.mark.parametrize("speed", SPEEDS)
def test_order_and_place_stay(speed):
    """High tone, then low tone: the change comes where it should, to 50 ms of the input."""
    out = stretched(np.concatenate([tone(RATE, 2000), tone(RATE, 300)]), speed)
    change = round(RATE / speed)
    near = round(0.05 * RATE / speed)
    for part, hertz in ((out[: change - near], 2000), (out[change + near :], 300)):
        spectrum = np.abs(np.fft.rfft(part * np.hanning(len(part))))
        assert np.fft.rfftfreq(len(part), 1 / RATE)[spectrum.argmax()] == pytest.approx(hertz, rel=0.02)


@settings(max_examples=examples(40))
@given(cuts=st.lists(st.integers(0, 20_000), max_size=40), speed=st.floats(0.25, 4.0))
def test_samples_do_not_depend_on_the_cuts(cuts, speed):
    samples = tone(20_000) * np.linspace(0, 1, 20_000, dtype=np.float32)
    assert np.array_equal(stretched(samples, speed, cuts), stretched(samples, speed))


@pytest.mark.parametrize("speed", SPEEDS)
def test_streams_flow(speed):
    """Half a second in, the most that is held back is a quarter of one."""
    given_back = len(Stretch(speed).feed(tone(RATE // 2)))
    assert given_back * speed >= RATE / 4


@given(st.floats(0.25, 4.0))
def test_a_speed_is_shared_between_model_and_stretch(speed):
    assert share_speed(speed, "stretch") == (5, speed)
    token, stretch = share_speed(speed, "token")
    assert stretch == 1
    assert abs(token - 5 * speed) <= 0.5 or token == 9
    token, stretch = share_speed(speed, "auto")
    assert token in (4, 5, 6)
    assert 0.25 <= stretch <= 4
    assert token / 5 * stretch == pytest.approx(speed) or stretch == 0.25


def test_no_speed_is_no_change_in_any_mode():
    assert {share_speed(1.0, mode) for mode in ("stretch", "token", "auto")} == {(5, 1.0)}


@pytest.mark.parametrize("speed", [0.2, 4.1, 0.0, float("nan")])
def test_other_speeds_are_a_mistake_of_ours(speed):
    with pytest.raises(AssertionError):
        Stretch(speed)
