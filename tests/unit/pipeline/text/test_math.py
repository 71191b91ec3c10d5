"""Math: formulas are read as a lecturer says them, and the dollars of money stay money."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import normalize
from pipeline.text.normalize.numbers import english
from pipeline.text.normalize.tex import tex_words
from tests.support.effort import examples

LETTERS = st.sampled_from(list("xyznkabc"))
ATOMS = st.one_of(LETTERS, st.integers(0, 99).map(str), st.sampled_from([r"\alpha", r"\pi", r"\infty", r"\theta"]))
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(r"\frac{{{}}}{{{}}}".format, inner, inner),
        st.builds(r"\sqrt{{{}}}".format, inner),
        st.builds("{}^{{{}}}".format, LETTERS, inner),
        st.builds("{}_{{{}}}".format, LETTERS, inner),
        st.builds("{} {} {}".format, inner, st.sampled_from(["+", "-", r"\times", r"\cdot", "=", r"\leq", "<"]), inner),
        st.builds(r"\left({}\right)".format, inner),
    ),
    max_leaves=8,
)
WORDS_ONLY = re.compile(r"[\u4e00-\u9fffA-Za-z ]*")


@settings(max_examples=examples(40))
@given(FORMULAS, st.sampled_from(["en", "zh"]))
def test_every_letter_and_number_of_a_formula_is_spoken(formula, language):
    spoken = tex_words(formula, language)
    assert WORDS_ONLY.fullmatch(spoken)
    plain = re.sub(r"\\[a-z]+", " ", formula)
    assert len(re.findall(r"\b[xyznkbc]\b", spoken, re.ASCII)) == len(re.findall(r"[xyznkbc]", plain))
    if language == "en":
        for digits in re.findall(r"(?<!\{)\b\d+\b(?!\})", plain):
            assert english(int(digits)) in spoken


@settings(max_examples=examples(40))
@given(FORMULAS, st.sampled_from(["${}$", "$${}$$", r"\({}\)", r"\[{}\]"]))
def test_between_any_signs_of_a_formula_the_reading_is_the_same(formula, signs):
    formula = f"x = {formula}"
    assert normalize(signs.replace("{}", formula), language="en").text == tex_words(formula, "en")


@settings(max_examples=examples(40))
@given(st.text(max_size=200), st.sampled_from(["en", "zh"]))
def test_no_formula_is_an_error(source, language):
    assert isinstance(tex_words(source, language), str)


@settings(max_examples=examples(40))
@given(st.integers(1, 999), st.integers(1, 999), st.sampled_from([" and ", ", not ", " to ", " or even ", "/month or "]))
def test_two_prices_are_no_formula(first, second, between):
    spoken = normalize(f"It costs ${first}{between}${second} now.").text
    assert english(first) in spoken
    assert spoken.count("dollar") == 2


@pytest.mark.parametrize("depth", [10, 1000])
def test_a_tower_of_groups_is_soon_read(depth):
    assert tex_words("{" * depth + "x" + "}" * depth, "en") in ("x", "")
    assert tex_words(r"\frac{1" * depth, "en") is not None


@pytest.mark.parametrize(
    ("written", "language", "spoken"),
    [
        (r"$\theta = 90^\circ$", "en", "theta equals ninety degrees"),
        (r"$x \neq 0$", "en", "x is not equal to zero"),
        (r"\nu = 5", "en", "nu equals five"),
        ("C:\\new\\tools", "en", "C colon backslash new backslash tools"),
        ("6.02×10^23", "en", "six point zero two times ten to the power of twenty three"),
        ("10⁻³ m", "zh", "十的负三次方米"),
        ("5 * 3", "en", "five times three"),
        ("It is *very* good", "en", "It is very good"),
        ("a_1", "en", "a sub one"),
        ("snake_case_1", "en", "snake case one"),
        ("f(x)", "en", "f of x"),
        ("file(s)", "en", "file, s"),
        ("Plan B (2)", "en", "Plan B, two"),
    ],
)
def test_formulas_in_running_text(written, language, spoken):
    assert normalize(written, language=language).text == spoken
