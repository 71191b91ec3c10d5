"""Label: labels follow from what was measured, and are told of no other weights."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint.layout import MANIFEST_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.errors import CheckpointError
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.persons import FILE, read_persons
from serve.commands import label
from serve.commands.label import NAMES, PITCHES, Measurement, describe
from tests.support.demo_voice import VOICES, demo_library

MEASUREMENTS = st.builds(Measurement, pitch_hz=st.floats(60, 400), seconds=st.floats(5, 60), brightness_hz=st.floats(100, 5000))


def test_every_shipped_voice_is_somebody_on_the_shipped_weights():
    voices = demo_library().list()
    names = [(voice.title, voice.labels["name_zh"]) for voice in voices]
    assert len(set(names)) == len(voices)
    assert not [voice for voice in voices if voice.title.startswith(("seed", "voice"))]
    assert {voice.labels["pitch"] for voice in voices} >= {"low", "middle", "high", "very high"}


def test_voices_have_numbers_until_these_weights_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "asset").symlink_to(DEMO_FOLDER / "asset")
    assert label.main(["--checkpoint", str(tmp_path)]) == 1
    assert "chattts-serve pack" in capsys.readouterr().err
    manifest = tmp_path / MANIFEST_FILE
    manifest.write_bytes((DEMO_FOLDER / MANIFEST_FILE).read_bytes())
    assert read_persons(tmp_path) == {}
    monkeypatch.setattr(label, "SENTENCES", label.SENTENCES[:1])
    assert label.main(["--checkpoint", str(tmp_path)]) == 0
    persons, shipped = read_persons(tmp_path), read_persons(DEMO_FOLDER)
    assert persons.keys() == shipped.keys()
    # One sentence tells low voices from high ones as ten do.
    extremes = {shipped[origin]["pitch"] for origin in (next(iter(persons)), next(reversed(persons)))}
    assert extremes == {"low", "very high"}
    # Other weights in the same folder are other speakers.
    manifest.write_bytes(manifest.read_bytes().replace(b"a", b"b", 1))
    assert read_persons(tmp_path) == {}
    (tmp_path / FILE).write_text(json.dumps({"persons": {}}))
    with pytest.raises(CheckpointError, match="chattts-serve label"):
        read_persons(tmp_path)
    assert {(voice.title, *voice.labels) for voice in VoiceCatalogue.load(VOICES, 256).list()} == {("",)}


@given(st.lists(MEASUREMENTS, min_size=1, max_size=len(NAMES)))
def test_words_have_the_order_of_what_was_measured(measurements):
    by_origin = {f"seed:{number}": measurement for number, measurement in enumerate(measurements)}
    persons = describe(by_origin)
    assert persons.keys() == by_origin.keys()
    assert len({person["name"] for person in persons.values()}) == len(persons)
    words = [word for _, word in PITCHES]
    pitches = [words.index(persons[origin]["pitch"]) for origin in sorted(by_origin, key=lambda one: by_origin[one].pitch_hz)]
    assert pitches == sorted(pitches)
    assert all(isinstance(value, str) for person in persons.values() for value in person.values())


def test_nobody_is_without_a_name():
    with pytest.raises(ValueError, match="there are names for"):
        describe({f"seed:{number}": Measurement(100, 10, 500) for number in range(len(NAMES) + 1)})
