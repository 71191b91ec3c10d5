"""The stages of the post-processor: each does its work, shifts no sample, and does not depend on the cuts."""

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio.denoise import Denoiser, measure_noise
from pipeline.audio.framing import Blocks
from pipeline.audio.limiter import CEILING_DBTP, Limiter
from pipeline.audio.loudness import MAX_CORRECTION_DB, Level, integrated_loudness
from pipeline.audio.post_processor import Fade, Resample, resampled_length
from pipeline.audio.tempo import Stretch, share_speed
from pipeline.audio.trim import FRAME, MAX_FRAMES, Trim
from pipeline.types import Denoise
from tests.support.effort import examples
from tests.support.sounds import RATE, noise, speech, true_peak_db

RATES = (8_000, 16_000, 22_050, 32_000, 44_100, 48_000)


def through(stage, samples, cuts=()) -> np.ndarray:
    return np.concatenate([*(stage.feed(piece) for piece in np.split(samples, sorted(cuts))), stage.finish()])


def db(ratio: float) -> float:
    return 20 * np.log10(ratio)


STAGES = {
    "limiter": lambda: Limiter(RATE),
    "limiter 48000": lambda: Limiter(48_000),
    "denoise on": lambda: Denoiser(Denoise.ON),
    "denoise auto": lambda: Denoiser(Denoise.AUTO),
    "level": lambda: Level(-23.0, gain_db=3),
    "trim": lambda: Trim(start=True, end=True),
    "trim start": lambda: Trim(start=True, end=False),
    "trim end": lambda: Trim(start=False, end=True),
    "fade": lambda: Fade(1000, 1000),
    **{f"resample {rate}": lambda rate=rate: Resample(rate) for rate in RATES},
    **{f"stretch {speed}": lambda speed=speed: Stretch(speed) for speed in (0.25, 0.8, 1.3, 4.0)},
}
KEEPS_LENGTH = [name for name in STAGES if not name.startswith(("resample", "trim", "stretch"))]


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(cuts=st.lists(st.integers(0, 70_000), max_size=60), quiet=st.integers(0, 30_000))
@pytest.mark.parametrize("name", STAGES)
def test_no_bit_depends_on_the_cuts(name, cuts, quiet):
    samples = 2 * np.concatenate([noise(quiet, 1e-4), speech(70_000 - quiet)])
    assert np.array_equal(through(STAGES[name](), samples, cuts), through(STAGES[name](), samples))


@pytest.mark.parametrize("name", KEEPS_LENGTH)
@pytest.mark.parametrize("length", [0, 1, 100, 511, 512, 513, 30_001])
def test_the_length_stays(name, length):
    out = through(STAGES[name](), speech(length))
    assert len(out) == length
    assert out.dtype == np.float32
    assert np.isfinite(out).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_memory_is_bounded(name):
    """Of a minute that is fed no more than four seconds stay inside at any time."""
    stage, samples, inside = STAGES[name](), speech(RATE), 0
    per_second = len(through(STAGES[name](), np.tile(samples, 10))) / 10
    given_back = 0
    for second in range(1, 61):
        given_back += len(stage.feed(samples))
        inside = max(inside, second * per_second - given_back)
    assert inside < 4 * per_second


def test_blocks_give_everything_once():
    blocks = Blocks(7, np.int16)
    fed = np.arange(100, dtype=np.int16)
    whole = [blocks.feed(piece) for piece in np.split(fed, [1, 2, 30, 31, 90])]
    assert all(piece.shape[1] == 7 for piece in whole)
    assert np.array_equal(np.concatenate([*(piece.reshape(-1) for piece in whole), blocks.rest()]), fed)
    assert len(blocks.rest()) == 0


# Limiter.


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
@pytest.mark.parametrize("gain", [1, 4, 30])
@pytest.mark.parametrize("kind", ["speech", "noise", "clicks", "steps"])
def test_no_true_peak_is_above_the_ceiling(rate, gain, kind):
    samples = {
        "speech": speech(30_000, 1.0),
        "noise": noise(30_000, 0.3),
        "clicks": (np.arange(30_000) % 3_333 == 100).astype(np.float32),
        "steps": np.where(np.arange(30_000) % 400 < 200, np.float32(0.9), np.float32(-0.9)),
    }[kind]
    # The topmost tenth of the band, where no curve of finitely many samples follows, holds nothing in a 24 kHz voice.
    spectrum = np.fft.rfft(samples)
    spectrum[int(0.9 * len(spectrum)) :] = 0
    out = through(Limiter(rate), (gain * np.fft.irfft(spectrum, 30_000)).astype(np.float32))
    assert true_peak_db(out) <= CEILING_DBTP


def test_what_is_below_the_ceiling_passes_bit_for_bit():
    samples = speech(30_000, 0.5)
    assert true_peak_db(samples) < CEILING_DBTP - 0.5
    assert np.array_equal(through(Limiter(RATE), samples), samples)


def test_a_peak_changes_only_its_surroundings_and_shifts_nothing():
    samples = speech(60_000, 0.4)
    samples[30_000] = 3.0
    out = through(Limiter(RATE), samples)
    changed = np.flatnonzero(out != samples)
    assert 30_000 - 500 < changed[0] <= 30_000 <= changed[-1] < 30_000 + 2_000
    assert int(np.abs(out[29_500:30_500]).argmax()) == 500


def test_limited_speech_stays_the_same_wave():
    """A gain that followed each period would add overtones; one that stands still adds none."""
    tone = (2 * np.sin(2 * np.pi * 100 * np.arange(48_000) / RATE)).astype(np.float32)
    spectrum = np.abs(np.fft.rfft(through(Limiter(RATE), tone)[12_000:36_000] * np.hanning(24_000)))
    assert db(spectrum[150:].max() / spectrum[100]) < -80


# Loudness.


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
def test_the_standards_own_tone(rate):
    """BS.1770: a full-scale sine of 997 Hz in one channel is -3.01 LUFS."""
    tone = np.sin(2 * np.pi * 997 * np.arange(5 * rate) / rate).astype(np.float32)
    assert integrated_loudness(tone, rate) == pytest.approx(-3.01, abs=0.1)
    assert integrated_loudness(tone / 10, rate) == pytest.approx(-23.01, abs=0.1)


def test_silence_does_not_count():
    voice = speech(5 * RATE)
    padded = np.concatenate([np.zeros(5 * RATE, np.float32), voice, np.zeros(5 * RATE, np.float32)])
    assert integrated_loudness(padded) == pytest.approx(integrated_loudness(voice), abs=0.3)
    assert integrated_loudness(np.zeros(RATE, np.float32)) == -np.inf
    assert integrated_loudness(np.zeros(0, np.float32)) == -np.inf
    assert np.isfinite(integrated_loudness(voice[:2000]))


@pytest.mark.parametrize("target", [-30.0, -23.0, -16.0])
@pytest.mark.parametrize("peak", [0.05, 0.5])
def test_a_voice_is_brought_to_a_loudness_by_one_number(target, peak):
    samples = speech(4 * RATE, peak)
    out = through(Level(target), samples)
    assert integrated_loudness(out) == pytest.approx(target, abs=0.5)
    assert np.ptp(out[samples != 0] / samples[samples != 0]) < 1e-5
    known = integrated_loudness(samples[: 2 * RATE])
    assert np.array_equal(through(Level(target, measured_lufs=known), samples), out)


def test_a_measured_voice_waits_for_nothing():
    assert len(Level(-20.0, measured_lufs=-30.0).feed(speech(100))) == 100
    assert len(Level(None, gain_db=6).feed(speech(100))) == 100


def test_corrections_are_bounded_and_silence_is_left_alone():
    assert np.array_equal(through(Level(-16.0), np.zeros(100, np.float32)), np.zeros(100, np.float32))
    quiet = speech(RATE, 3e-3)
    assert db(np.abs(through(Level(-5.0), quiet)).max() / np.abs(quiet).max()) == pytest.approx(MAX_CORRECTION_DB, abs=1e-3)


# Trim.


@pytest.mark.parametrize("floor", [0, 1e-4, 1e-3, 4e-3])
def test_quiet_edges_go_and_speech_stays(floor):
    """Whatever the noise of the recording's room, up to -48 dBFS."""
    tone = (0.3 * np.sin(np.arange(RATE) / 10)).astype(np.float32)
    samples = noise(4 * RATE, floor)
    samples[RATE : 2 * RATE] += tone
    trim = Trim(start=True, end=True)
    out = through(trim, samples)
    assert np.array_equal(out, samples[trim.start_samples : len(samples) - trim.end_samples])
    assert trim.start_samples == pytest.approx(RATE - 0.05 * RATE, abs=FRAME)
    assert trim.end_samples == pytest.approx(2 * RATE - 0.1 * RATE, abs=FRAME)


def test_each_edge_alone():
    samples = np.concatenate([noise(RATE, 1e-4), speech(RATE), noise(RATE, 1e-4)])
    first, last = Trim(start=True, end=False), Trim(start=False, end=True)
    assert np.array_equal(through(first, samples), samples[first.start_samples :])
    assert first.start_samples > 0.9 * RATE
    assert first.end_samples == 0
    assert np.array_equal(through(last, samples), samples[: len(samples) - last.end_samples])
    assert last.end_samples > 0.8 * RATE


@pytest.mark.parametrize("pause_s", [0.3, 1.5, 5.0])
def test_pauses_between_words_stay(pause_s):
    pause = noise(round(pause_s * RATE), 1e-4)
    samples = np.concatenate([speech(RATE), pause, speech(RATE)])
    trim = Trim(start=True, end=True)
    out = through(trim, samples)
    assert len(out) == len(samples) - trim.start_samples - trim.end_samples
    assert trim.end_samples < 0.3 * RATE


@pytest.mark.parametrize("length", [0, 1, 100, 5_000, 100_000])
@pytest.mark.parametrize("level", [0, 1e-4])
def test_an_utterance_without_speech_is_kept_whole(length, level):
    samples = noise(length, level)
    samples[length // 2 : length // 2 + 20] += 0.5  # a click is no speech
    assert np.array_equal(through(Trim(start=True, end=True), samples), samples)


def test_no_more_than_two_seconds_are_held_or_cut_at_an_edge():
    long = noise(5 * RATE, 1e-4)
    trim = Trim(start=True, end=True)
    assert len(trim.feed(long)) > 0, "a beginning that stays quiet is let through"
    trim.feed(speech(RATE))
    trim.feed(long)
    trim.finish()
    assert trim.start_samples == 0
    assert trim.end_samples <= MAX_FRAMES * FRAME


# Denoise.


def test_noise_goes_and_speech_stays():
    clean = speech(5 * RATE)
    hiss = noise(5 * RATE, 0.02, seed=1)
    out = through(Denoiser(Denoise.ON), clean + hiss)
    at = np.arange(5 * RATE) / RATE
    pauses, words = np.sin(2 * np.pi * 4 * at) < -0.5, np.sin(2 * np.pi * 4 * at) > 0.5
    assert db(out[pauses].std() / hiss.std()) < -12
    assert db((out - clean)[words].std() / clean[words].std()) < -20


def test_auto_leaves_clean_speech_alone_bit_for_bit():
    clean, noisy = speech(3 * RATE), speech(3 * RATE) + noise(3 * RATE, 0.03, seed=1)
    for samples, works in ((clean, False), (noisy, True)):
        denoiser = Denoiser(Denoise.AUTO)
        out = through(denoiser, samples)
        assert denoiser.works is works
        assert np.array_equal(out, samples) is not works
        assert np.array_equal(out, through(Denoiser(Denoise.ON), samples)) is works


@pytest.mark.parametrize("level", [0.003, 0.03, 0.1])
def test_the_noise_is_measured_to_a_few_db(level):
    clean, hiss = speech(RATE), noise(RATE, level, seed=2)
    _, snr_db = measure_noise(clean + hiss)
    assert snr_db == pytest.approx(db(clean.std() / hiss.std()), abs=3)


def test_later_segments_need_no_second_measurement_and_stay_whole():
    first, second = speech(RATE + 77) + noise(RATE + 77, 0.02), speech(5_000)
    denoiser = Denoiser(Denoise.ON)
    assert len(through(denoiser, first)) == len(first)
    assert len(denoiser.feed(second)) > 0
    assert len(denoiser.finish()) > 0
    alone = through(denoiser, second)
    assert len(alone) == len(second)


def test_a_gate_that_finds_no_noise_gives_everything_back():
    samples = np.concatenate([np.zeros(RATE, np.float32), speech(RATE)])
    assert np.abs(through(Denoiser(Denoise.ON), samples) - samples).max() < 1e-6


# Fades.


def test_fades_touch_the_edges_alone():
    samples = np.ones(5_000, np.float32)
    out = through(Fade(100, 100), samples)
    assert np.array_equal(out[100:-100], samples[100:-100])
    assert out[0] == out[-1] < 1e-3
    assert (np.diff(out[:100]) > 0).all()
    assert np.array_equal(out[:100], out[-100:][::-1])
    assert np.abs(through(Fade(100, 100), np.ones(30, np.float32))).max() < 1


# Resampling.


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 511, 24_001, 100_003])
def test_resampled_lengths_are_exact(rate, length):
    assert len(through(Resample(rate), speech(length))) == resampled_length(length, rate)
    assert resampled_length(length, rate) == int(np.floor(length * rate / RATE + 0.5))


@pytest.mark.parametrize("rate", RATES)
def test_resampling_keeps_time_level_and_pitch(rate):
    at = np.arange(2 * RATE) / RATE
    samples = (0.5 * np.sin(2 * np.pi * 1_000 * at)).astype(np.float32)
    expected = 0.5 * np.sin(2 * np.pi * 1_000 * np.arange(2 * rate) / rate)
    inner = slice(rate // 10, -rate // 10)
    assert np.abs(through(Resample(rate), samples) - expected)[inner].max() < 1e-4


@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_nothing_folds_down(rate):
    at = np.arange(2 * RATE) / RATE
    tone = (0.5 * np.sin(2 * np.pi * 0.6 * rate * at)).astype(np.float32)
    assert np.abs(through(Resample(rate), tone)[rate // 10 : -rate // 10]).max() < 1e-4


def test_resampled_streams_are_what_the_library_gives_at_once():
    samples = speech(50_000)
    whole = soxr.resample(samples, RATE, 44_100, quality="HQ")
    out = through(Resample(44_100), samples, range(0, 50_000, 777))
    assert np.abs(whole[: len(out)] - out[: len(whole)]).max() < 1e-5


# Time-stretch: exact length, same pitch.


SPEEDS = [0.25, 0.3, 0.5, 0.8, 0.99, 1.01, 1.5, 2.0, 2.5, 4.0]


def tone(samples: int, hertz: float = 440.0) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(samples) / RATE)).astype(np.float32)


def stretched(samples, speed):
    return through(Stretch(speed), samples)


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
