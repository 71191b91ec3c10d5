"""The ears of the judge: recognisers tell the teachers' sentences from others, and mistakes are counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.evaluate.listening import KINDS, Listener, Recording, language_of, pinyin, syllables_of, teacher
from scripts.train_demo.held_out import held_out
from scripts.train_demo.syllable_recogniser import BLANK, as_heard, classes, decoded, labels
from scripts.train_demo.syllables import syllables
from scripts.train_demo.word_errors import edits
from tests.support.services import needed_program

SYLLABLES = st.lists(st.sampled_from(sorted(syllables())), max_size=8)


@given(SYLLABLES, st.integers(1, 4))
def test_syllables_are_decoded_from_their_classes(spoken: list[str], frames: int):
    frames_of = [index for label in labels(spoken) for index in (*[label] * frames, BLANK)]
    assert decoded(frames_of) == as_heard(spoken)


def test_a_class_is_an_initial_or_a_final_with_its_tone():
    assert len(set(classes().values())) == len(classes())
    assert BLANK not in classes().values()
    assert {index for syllable in syllables() for index in labels([syllable])} <= set(classes().values())


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_edits_are_a_distance(first: list[str], second: list[str]):
    assert edits(first, second) == edits(second, first)
    assert abs(len(first) - len(second)) <= edits(first, second) <= max(len(first), len(second))
    assert (edits(first, second) == 0) == (first == second)


def test_every_kind_belongs_to_one_language():
    kinds = [kind for of_language in KINDS.values() for kind in of_language]
    assert len(set(kinds)) == len(kinds)
    assert {language_of("mandarin"), language_of("digits")} == {"zh", "en"}


def test_chinese_sentences_become_pinyin_with_stops():
    assert pinyin("你好，中国！") == "ni3 hao3, zhong1 guo2."
    assert syllables_of("听音乐。") == ["ting1", "yin1", "yue4"]


@pytest.mark.slow
def test_the_ear_for_mandarin_tells_the_teachers_sentences_from_others():
    needed_program("espeak-ng", "espeak-ng")
    listener, (first, second) = Listener(), held_out("mandarin")[:2]
    said = teacher("mandarin", first)
    right, wrong = (listener.compare("mandarin", sentence, said) for sentence in (first, second))
    assert right.mistakes / len(right.expected) < 0.5 < wrong.mistakes / len(wrong.expected)
    silence = Recording(np.zeros(16_000, np.float32), 16_000, 0.0)
    assert listener.compare("mandarin", first, silence).mistakes >= len(right.expected) - 1
