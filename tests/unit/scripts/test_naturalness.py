"""The judge of naturalness: phones in one alphabet, rates, the range of the pitch, what is missing, folders of recordings."""

import numpy as np
import pytest
import soundfile

from pipeline.spec import SAMPLE_RATE
from pipeline.voices.measure import pitches_hz
from scripts.evaluate import impressions, listening, naturalness
from scripts.evaluate.impressions import Impression, english_phones, range_semitones, require, speech_s, symbol_of
from scripts.evaluate.naturalness import figures, main, readable, recordings_in
from scripts.train_demo.sounds import Unit
from scripts.train_demo.word_errors import edits

WATER = (Unit("ˈw", "w"), Unit("##ˈɔ", "ˈɔ"), Unit("##ɾ", "ɾ"), Unit("##ə", "ə"), Unit("##ɹ", "ɹ"))
STOP, BLANK = Unit(".", "."), Unit(" ", " ")
SPEECH = {"overall": 3.0, "signal": 3.0, "background": 4.0, "p808": 3.0, "voiced": 0.8}


def tone(semitones: np.ndarray) -> np.ndarray:
    """Returns a voice whose pitch lies so far from 200 Hz at each sample."""
    phase = 2 * np.pi * np.cumsum(200 * 2 ** (semitones / 12)) / SAMPLE_RATE
    return (0.1 * sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 8))).astype(np.float32)


def recognised(signs: str) -> str:
    return "".join(map(symbol_of, signs.split()))


def test_both_sides_have_one_alphabet():
    assert english_phones(WATER) == recognised("w ɔ t ɝ") == recognised("w ɑ ɾ ɚ")
    assert recognised("d͡ʒ eɪ t͡ʃ oʊ aɪ g r ʌ") == recognised("ʤ A ʧ O I ɡ ɹ ə")


def test_words_and_stops_end_a_sound():
    """The r of a second word does not melt into the vowel before it."""
    ruh = (Unit("ə", "ə"), BLANK, Unit("ɹ", "ɹ"), Unit("##ˈA", "ˈA"), STOP)
    assert english_phones(ruh) == recognised("ə ɹ eɪ")


@pytest.mark.parametrize(("sign", "symbol"), [("kʰ", "?"), ("ɯ", "?"), ("<unk>", ""), ("ː", ""), ("%", "")])
def test_a_sound_that_is_not_english_is_one_mistake_and_a_mark_none(sign, symbol):
    assert symbol_of(sign) == symbol


def test_the_phone_error_rate_counts_over_all_sentences():
    assert edits(english_phones(WATER), recognised("w ɑ d ɝ s")) == 2
    takes = [
        Impression(**SPEECH, phones=4, mistakes=2, pitch_range=4.0, pace=10.0),
        Impression(**SPEECH, phones=16, mistakes=0, pitch_range=None, pace=14.0),
    ]
    result = figures(takes)
    assert result["phone_error_rate"] == 0.1
    assert result["pitch_range_semitones"] == 4.0
    assert result["pace"] == 12.0
    assert figures([Impression(**SPEECH, phones=0, mistakes=0, pitch_range=None, pace=4.0)])["phone_error_rate"] is None


@pytest.mark.parametrize("width", [0.0, 3.0, 8.0])
def test_the_range_of_a_gliding_tone(width):
    pitches = pitches_hz(tone(np.linspace(-width / 2, width / 2, 2 * SAMPLE_RATE)))
    assert np.isfinite(pitches).all()
    assert range_semitones(pitches) == pytest.approx(0.9 * width, abs=0.4)
    assert range_semitones(np.append(pitches, 4 * [400.0, 100.0])) == pytest.approx(0.9 * width, abs=1)


def test_noise_is_not_voiced():
    noise = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE).astype(np.float32)
    assert np.isnan(pitches_hz(noise)).all()
    assert range_semitones(np.empty(0)) is None


def test_speech_lasts_from_its_first_to_its_last_sound():
    silence = np.zeros(SAMPLE_RATE // 2, np.float32)
    speech = tone(np.zeros(SAMPLE_RATE))
    assert speech_s(np.concatenate([silence, speech, silence, speech, silence])) == pytest.approx(2.5, abs=0.03)
    assert speech_s(np.zeros(0, np.float32)) == 0


def test_missing_packages_are_one_line_that_names_the_extra(monkeypatch, capsys):
    monkeypatch.setattr(naturalness, "PACKAGES", ("no_such_judge",))
    assert main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no_such_judge" in line
    assert "pip install '.[train]'" in line
    require(("numpy",))


def test_recordings_have_the_lines_of_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(listening, "sounds", lambda text: WATER if "water" in text else None)
    (tmp_path / "texts.txt").write_text("water\nan odd text\n水 water\n", encoding="utf-8")
    for number in ("0.wav", "01.wav", "002.flac", "7.wav", "notes.wav"):
        soundfile.write(tmp_path / number, np.zeros((480, 2)), 48_000)
    recordings = recordings_in(tmp_path)
    assert [(sentence.text, sentence.language) for sentence, _ in recordings] == [("water", "en"), ("水 water", "zh")]
    assert all(samples.shape == (240,) for _, samples in recordings)
    (tmp_path / "texts.txt").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"such as 0\.wav"):
        recordings_in(tmp_path)


def test_a_recording_is_judged_whole():
    for package in impressions.PACKAGES:
        pytest.importorskip(package)
    (sentence,) = readable(["The water is cold."])
    clean = tone(3 * np.sin(np.arange(2 * SAMPLE_RATE) / 9000))
    noise = np.random.default_rng(0).normal(0, 0.05, len(clean)).astype(np.float32)
    plain, noisy = (impressions.impression(samples, sentence.units) for samples in (clean, clean + noise))
    assert plain.phones == len("ðəwɔtɜɪzkold")
    assert 0 < noisy.background < plain.background <= 5
