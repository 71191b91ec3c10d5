"""The teacher's phones as the project's phone characters."""

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.train_demo.phones import SYMBOLS
from scripts.train_demo.teacher_phones import symbols_of

AMERICAN = "AIOWYɑɔæʌəᵊɐᵻɛɜɪiuʊbdfhjklmnpstvwzɡŋɹɾTʔðθʃʒʤʧ"


@pytest.mark.parametrize(
    ("phones", "names"),
    [
        ("fəɹɡˈɛt", "f er g eh t"),
        ("wˈɜɹld", "w er l d"),
        ("wˈɔTəɹ", "w ao t er"),
        ("bˈʌʔn", "b ah t n"),
        ("ˌʌndəɹstˈænd", "ah n d er s t ae n d"),
        ("ʤˈʌʤᵻz", "jh ah jh ax z"),
        ("jˈuθ", "y uw th"),
    ],
)
def test_words(phones: str, names: str):
    assert [symbol for symbol, _ in symbols_of(phones)] == [SYMBOLS[name] for name in names.split()]


def test_the_mark_and_the_r_belong_to_the_vowel():
    assert symbols_of("mˈɜɹdəɹ") == [(SYMBOLS["m"], 1), (SYMBOLS["er"], 3), (SYMBOLS["d"], 1), (SYMBOLS["er"], 2)]


@given(st.lists(st.tuples(st.sampled_from(["", "ˈ", "ˌ"]), st.sampled_from(AMERICAN)), min_size=1), st.sampled_from(["", "ˈ"]))
def test_every_character_is_counted_once(marked: list[tuple[str, str]], end: str):
    phones = "".join(mark + phone for mark, phone in marked) + end
    symbols = symbols_of(phones)
    assert sum(count for _, count in symbols) == len(phones)
    assert all(count > 0 and symbol in SYMBOLS.values() for symbol, count in symbols)


@pytest.mark.parametrize("phones", ["kˈæ7t", "ˈ", "kæt dɔɡ"])
def test_a_foreign_sign_is_an_error(phones: str):
    with pytest.raises(ValueError, match="no phone of the teacher"):
        symbols_of(phones)


def test_the_whole_lexicon_has_characters():
    pytest.importorskip("misaki")
    for name in ("us_gold", "us_silver"):
        for entry in json.loads((files("misaki") / "data" / f"{name}.json").read_text(encoding="utf-8")).values():
            for phones in [entry] if isinstance(entry, str) else entry.values():
                assert not phones or symbols_of(phones)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("invited", "ih n v ay t ax d"),
        ("stopped", "s t aa p t"),
        ("companies", "k ah m p ax n iy z"),
        ("dont", "d ow n t"),
        ("im", "ay m"),
        ("the", "dh ax"),
    ],
)
def test_pronunciations_are_the_teachers(word: str, names: str):
    pytest.importorskip("misaki")
    pronunciations = pytest.importorskip("scripts.train_demo.pronunciations")
    written = next((one for one in pronunciations.CONTRACTIONS.split() if one.replace("'", "") == word), word)
    assert pronunciations.characters(written) == "".join(SYMBOLS[name] for name in names.split())
