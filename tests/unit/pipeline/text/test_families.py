"""Families of short writing: chat words, formulas, codes, marks and dates are read by rule, whatever the word or the number."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import NormalizeOptions, normalize
from pipeline.text.normalize.chat import _SHORT, _SOUNDS
from pipeline.text.normalize.numbers import chinese, english, integer, spell
from pipeline.text.normalize.units import UNITS
from tests.support.effort import examples
from tests.unit.pipeline.text.test_heldout import canonical
from tests.unit.pipeline.text.test_scan import AFTER, BEFORE, heard

SIGN_BEFORE, SIGN_AFTER = st.sampled_from(("", *BEFORE)), st.sampled_from(("", *AFTER))
ELEMENTS = ("C", "H", "O", "N", "Na", "Ca", "Fe", "Cl", "Mg", "K")
few = settings(max_examples=examples(40))


@few
@given(st.sampled_from(sorted({**_SOUNDS, **_SHORT}.items())), SIGN_BEFORE, SIGN_AFTER)
def test_a_word_of_messages_is_read_beside_any_sign(word, before, after):
    short, long = word
    assert heard(f"we say {before}{short}{after} to him", "en") == canonical(f"we say {long} to him")


@few
@given(st.lists(st.tuples(st.sampled_from(ELEMENTS), st.integers(2, 99)), min_size=2, max_size=5), SIGN_AFTER)
def test_the_numbers_of_a_formula_are_numbers(parts, after):
    written = "".join(f"{element}{number}" for element, number in parts)
    if re.fullmatch(r"[A-Z]2[A-Z]\d*", written):
        return
    said = " ".join(f"{' '.join(element.upper())} {english(number)}" for element, number in parts)
    assert heard(f"the gas {written}{after}", "en") == canonical(f"the gas {said}")


@few
@given(st.integers(0, 999_999), st.integers(0, 99), st.sampled_from(["€{}", "{} €", "{} EUR"]))
def test_euros_with_a_comma_are_those_with_a_dot(whole, cents, sign):
    english_way = f"{whole:,}.{cents:02d}"
    european = english_way.translate({ord(","): ".", ord("."): ","})
    assert heard(f"It costs {sign.format(european)} now", "en") == heard(f"It costs {sign.format(english_way)} now", "en")


@few
@given(st.lists(st.text("0123456789", min_size=4, max_size=4), min_size=3, max_size=6))
def test_a_bank_account_is_read_digit_by_digit(groups):
    said = canonical(" ".join(spell(group, "en") for group in groups))
    assert heard(f"IBAN DE89 {' '.join(groups)}", "en").endswith(f"d e eight nine {said}")


@few
@given(st.integers(1, 999), st.integers(1, 999), st.sampled_from(["zh", "en"]))
def test_a_dash_before_an_equals_sign_is_a_minus(first, second, language):
    said = heard(f"{first}-{second}={first - second}", language)
    minus, equals = ("减", "等于") if language == "zh" else (" minus ", " equals ")
    left = [integer(str(number), language) for number in (first, second)]
    assert said.startswith(canonical(minus.join(left)) + equals.rstrip())


@few
@given(st.integers(2, 999), st.sampled_from("abcxyz"), st.integers(4, 20), SIGN_AFTER)
def test_a_power_keeps_its_factor(factor, base, power, after):
    said = f"{english(factor)} {base} to the power of {english(power)}"
    assert heard(f"we add {factor}{base}^{power}{after}", "en") == canonical(f"we add {said}")


@few
@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from([5, 10, 100]), SIGN_AFTER)
def test_a_decimal_before_a_slash_is_a_mark(whole, tenth, best, after):
    said = f"{english(whole)} point {english(tenth)} out of {english(best)}"
    assert heard(f"it got {whole}.{tenth}/{best}{after}", "en") == canonical(f"it got {said}")


@few
@given(st.integers(1, 12), st.integers(2000, 2039), st.sampled_from(["zh", "en"]))
def test_a_month_and_a_year(month, year, language):
    same = f"{year}年{month}月" if language == "zh" else f"{year}-{month:02d}"
    assert heard(f"{month:02d}/{year}", language) == heard(same, language)


@few
@given(st.integers(2, 99), st.integers(2, 99))
def test_scores_beside_a_falling_one_are_scores(first, second):
    low, high = sorted((first, second + 1))
    said = canonical(f"{chinese(high + 1)}比{chinese(low)}、{chinese(low)}比{chinese(high + 1)}")
    assert said in heard(f"中国女排（{high + 1}-{low}、{low}-{high + 1}）胜", "zh")


@few
@given(st.integers(10, 99), SIGN_BEFORE, SIGN_AFTER)
def test_hundredths_behind_metres_and_seconds_are_digits(rest, before, after):
    digits = spell(str(rest), "zh")
    assert heard(f"他{before}1米{rest}{after}", "zh") == canonical(f"他一米{digits}")
    assert heard(f"跑了{before}9秒{rest}{after}", "zh") == canonical(f"跑了九秒{digits}")


@few
@given(st.integers(1, 99), st.sampled_from(["楼", "汽油", "车间", "，开门"]))
def test_a_number_sign_behind_a_number_is_a_number_in_chinese(number, what):
    assert heard(f"去{number}#{what}", "zh") == heard(f"去{number}号{what}", "zh")


@few
@given(st.sampled_from("京沪粤浙"), st.sampled_from("ABCD"), st.text("0123456789", min_size=5, max_size=5))
def test_the_dot_of_a_number_plate_is_silent(province, letter, digits):
    assert heard(f"车牌{province}{letter}·{digits}", "zh") == heard(f"车牌{province}{letter}{digits}", "zh")


@few
@given(st.integers(1, 9999), st.sampled_from(["ml", "g", "mg", "GB"]))
def test_a_plus_before_an_amount_is_no_telephone_number(number, unit):
    assert heard(f"鸡蛋+{number}{unit}", "zh") == heard(f"鸡蛋加{number}{unit}", "zh")


@few
@given(
    st.integers(0, 999), st.text("[]{}|^*_`\"'", min_size=1, max_size=4), st.sampled_from(["kV", "kg", "MB", "km/h", "mmHg"])
)
def test_silent_signs_do_not_part_a_unit_from_its_chinese_number(number, signs, unit):
    options = NormalizeOptions(homophones=False)
    first = normalize(f"{number}{signs}{unit}", language="zh", options=options).text
    assert normalize(first, language="zh", options=options).text == first


@pytest.mark.parametrize("language", ["zh", "en"])
def test_every_unit_is_named_without_digits(language):
    for unit in UNITS:
        assert re.search(r"\d", heard(f"5 {unit}", language)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("an M8 screw", "an M eight screw"),
        ("let u be a vector", "let u be a vector"),
        ("COP28 in Dubai", "C O P twenty eight in Dubai"),
        ("Start IV fluids now", "Start I V fluids now"),
        ("the Sun: a star", "the Sun a star"),
        ("2 yrs", "two years"),
        ("5 + 250 ml", "five plus two hundred fifty milliliters"),
        ("call +1 212 555 0199", "call plus one two one two five five five zero one nine nine"),
    ],
)
def test_what_only_looks_like_it_stays(text, said):
    assert heard(text, "en") in (canonical(said), canonical(said.replace("C O P", "COP").replace("I V", "IV")))
