"""Say: the whole spine in one process, from a text to a file somebody else can read."""

import sys
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from pipeline.audio.encode import wav_header
from serve.commands import say

pytestmark = pytest.mark.slow


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["say", *arguments])
    return say.main()


def test_a_text_becomes_a_file_and_a_seed_repeats_it(tmp_path: Path, monkeypatch, capsys, demo_root):
    first, again, other = (tmp_path / name for name in ("first.wav", "again.wav", "other.wav"))
    text = "Hello there. This is said in one process, without a server."
    for path, seed in ((first, "5"), (again, "5"), (other, "6")):
        assert run(monkeypatch, text, "-o", str(path), "--seed", seed, "--voice", "nova") == 0
    samples, rate = soundfile.read(first)
    assert rate == 24_000
    assert 0.01 < np.abs(samples).max() <= 1
    assert len(samples) > 2_400
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert f"{len(samples) / rate:.2f} s of audio, seed 5" in capsys.readouterr().out


def test_the_suffix_is_the_format(tmp_path: Path, monkeypatch, demo_root):
    path = tmp_path / "hello.mp3"
    assert run(monkeypatch, "Hello.", "-o", str(path), "--seed", "5") == 0
    with av.open(str(path)) as file:
        assert file.streams.audio[0].codec_context.name.startswith("mp3")


def test_the_audio_options_are_the_requests(tmp_path: Path, monkeypatch, demo_root):
    def spoken(*arguments: str) -> bytes:
        path = tmp_path / "hello.wav"
        assert run(monkeypatch, "Hello.", "-o", str(path), "--seed", "5", *arguments) == 0
        return path.read_bytes()

    plain, phone = spoken(), spoken("--sample-rate", "8000")
    head = len(wav_header(8000, 0))
    assert len(phone) - head == pytest.approx((len(plain) - head) / 3, abs=2)
    assert len(spoken("--trim", "--denoise", "on", "--loudness", "-20", "--fade", "5", "--speed-mode", "auto")) <= len(plain)
    assert run(monkeypatch, "Hello.", "-o", str(tmp_path / "x.wav"), "--bitrate", "64") == 1


def test_ssml_is_spoken_with_its_voices_and_breaks(tmp_path: Path, monkeypatch, demo_root):
    path = tmp_path / "hello.wav"
    document = '<speak>One.<break time="700ms"/><voice name="alloy">Two.</voice></speak>'
    assert run(monkeypatch, document, "--ssml", "--voice", "nova", "-o", str(path), "--seed", "5") == 0
    samples, _ = soundfile.read(path)
    silent = "".join("0" if sample == 0 else "1" for sample in samples)
    assert "0" * (700 * 24) in silent
    assert run(monkeypatch, "<speak>", "--ssml", "-o", str(path)) == 1


def test_mistakes_are_said_in_one_line(tmp_path: Path, monkeypatch, capsys, demo_root):
    assert run(monkeypatch, "Hello.", "-o", str(tmp_path / "x.wav"), "--voice", "nobody") == 1
    assert "no such voice" in capsys.readouterr().err
    assert run(monkeypatch, "?!", "-o", str(tmp_path / "x.wav")) == 1
    assert "nothing to say" in capsys.readouterr().err
    for arguments, said in (
        (["-o", str(tmp_path / "x.midi")], "known formats are"),
        (["--speed", "9"], "--speed 9 is not within 0.25 .. 4"),
        (["--seed", "-1"], "--seed -1 is not within 0 .. 4294967295"),
    ):
        with pytest.raises(SystemExit):
            run(monkeypatch, "Hello.", *arguments)
        assert said in capsys.readouterr().err
