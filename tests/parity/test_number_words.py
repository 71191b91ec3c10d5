"""English number words: the same as inflect writes, which does nothing else."""

import inflect
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.normalize.numbers import english, ordinal


@given(st.integers(0, 10**15 - 1))
def test_english_integers_are_those_of_inflect(number):
    words = str(inflect.engine().number_to_words(number, andword="", comma=""))
    assert english(number) == " ".join(words.replace("-", " ").split())


@given(st.integers(0, 10**12))
def test_english_ordinals_are_those_of_inflect(number):
    engine = inflect.engine()
    words = str(engine.number_to_words(engine.ordinal(str(number)), andword="", comma=""))
    assert ordinal(str(number)) == " ".join(words.replace("-", " ").split())
