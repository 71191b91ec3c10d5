"""Scan: a token is read the same whatever sign stands beside it, and a family of readings holds for its whole family."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import NormalizeOptions, normalize
from pipeline.text.normalize.abbreviations import TITLES
from pipeline.text.normalize.numbers import english, pairs, spell
from pipeline.text.normalize.units import UNITS
from tests.support.effort import examples
from tests.unit.pipeline.text.test_heldout import canonical
from tests.unit.pipeline.text.test_normalize import CHINESE, ENGLISH

AFTER = (
    *(
        ".",
        ",",
        ";",
        ":",
        "!",
        "?",
        ")",
        "]",
        "}",
        '"',
        "'",
        "…",
        "—",
        " –",
        "。",
        "，",
        "；",
        "：",
        "！",
        "？",
        "）",
        "】",
        "」",
        "』",
    ),
    *("”", "’", "、", "》", "\n", "|", "</b>", "**", "`", " ", ". ", ").", '."', "?!", "。”", "）。", ":\n", "</p>"),
)
BEFORE = (
    *(
        "(",
        "[",
        "{",
        '"',
        "'",
        "—",
        "…",
        "\n",
        "|",
        "<b>",
        "**",
        "`",
        "（",
        "【",
        "「",
        "『",
        "“",
        "‘",
        "《",
        "、",
        "，",
        "。",
        "：",
        "；",
    ),
    *("！", "？", " ", ": ", "– ", ". ", '"(', "：“", "- ", "\n- ", "<p>"),
)
MARKDOWN = re.compile(r"[=*#>|+-]{1,6}\s|```|\d{1,2}[.)]\s")
QUOTES = frozenset("\"'“‘「『《")


def heard(text: str, language: str) -> str:
    return canonical(normalize(text, language=language, options=NormalizeOptions()).text)


@example(("Add 1/2", "auto", "Add one half"), "", ".")
@example(("on 10.0.0.1", "auto", "on one zero dot zero dot zero dot one"), "", ".")
@example(("比分3:2", "auto", "比分三比二"), "", "：")
@example(("42 cats", "auto", "forty two cats"), "<b>", "</b>")
@settings(max_examples=examples(50))
@given(st.sampled_from(ENGLISH + CHINESE), st.sampled_from(("", *BEFORE)), st.sampled_from(("", *AFTER)))
def test_a_token_beside_any_sign_is_the_same_token(row, before, after):
    source, language, spoken = row
    if not QUOTES.isdisjoint(before) and not QUOTES.isdisjoint(source):
        return  # a mark of inches closes a quotation that stands open
    if before and MARKDOWN.match(source):
        return  # a mark at the beginning of a line
    assert heard(before + source + after, language) == canonical(spoken)


NAMING = st.sampled_from(
    ["Order number", "Tracking number", "Your account is", "Invoice no.", "Reference:", "Confirmation code", "Ticket #", "PIN:"]
)


@settings(max_examples=examples(50))
@given(NAMING, st.text("0123456789", min_size=5, max_size=12))
def test_a_number_behind_what_it_names_is_read_digit_by_digit(words, digits):
    assert heard(f"{words} {digits} is ready.", "auto").endswith(f"{spell(digits, 'en')} is ready")


@settings(max_examples=examples(50))
@given(
    st.sampled_from(["订单号", "快递单号是", "卡号：", "验证码 ", "会员账号为"]), st.text("0123456789", min_size=5, max_size=12)
)
def test_a_number_behind_what_it_names_is_read_digit_by_digit_in_chinese(words, digits):
    assert heard(f"{words}{digits}，请保存", "auto").endswith(canonical(f"{spell(digits, 'zh')}请保存"))


@settings(max_examples=examples(50))
@given(st.sampled_from(["Boeing", "Room", "Highway", "Section", "error", "Flight"]), st.integers(101, 999))
def test_a_number_behind_the_name_of_a_kind_is_read_in_pairs(kind, number):
    assert heard(f"See {kind} {number} now.", "en") == canonical(f"See {kind} {pairs(str(number))} now")


@settings(max_examples=examples(50))
@given(st.integers(1, 9999), st.sampled_from(sorted(UNITS)), st.sampled_from(["day", "hour", "month", "person"]))
def test_a_slash_behind_a_unit_is_per(number, unit, counted_by):
    one, more, _ = UNITS[unit]
    said = f"{english(number)} {one if number == 1 else more} per {counted_by}"
    assert heard(f"It is {number} {unit}/{counted_by} now", "en") == canonical(f"It is {said} now")


@settings(max_examples=examples(50))
@given(st.integers(2, 999), st.sampled_from(sorted(UNITS)))
def test_a_unit_is_singular_before_what_it_describes(number, unit):
    assert heard(f"Take a {number} {unit} one", "en") == canonical(f"Take a {english(number)} {UNITS[unit][0]} one")


@settings(max_examples=examples(50))
@given(st.integers(2, 9999), st.sampled_from(sorted(UNITS)))
def test_nothing_between_a_value_and_its_unit_is_lost(number, unit):
    more = UNITS[unit][1]
    assert heard(f"It is {number} million {unit} now", "en") == canonical(f"It is {english(number)} million {more} now")
    assert heard(f"共{number}万{unit}。", "zh").endswith(f"万{UNITS[unit][2]}".replace("两", "二"))


@settings(max_examples=examples(50))
@given(st.sampled_from(sorted(TITLES)), st.sampled_from(["Smith", "Jones", "Anna Lee", "O'Hara"]))
def test_a_title_before_a_name_is_spoken_whatever_stands_before_it(title, name):
    whole = name.replace("'", "")
    assert heard(f"We met {title}. {name} there.", "en") == canonical(f"We met {TITLES[title]} {whole} there")


@settings(max_examples=examples(50))
@given(
    st.sampled_from(["etc.", "Inc.", "Jr.", "U.S.", "D.C.", "Ave.", "Dec.", "Fri."]), st.sampled_from(["The", "He", "It", "We"])
)
def test_an_abbreviation_at_the_end_of_a_sentence_leaves_its_stop(abbreviation, following):
    said = normalize(f"It was on Park {abbreviation} {following} left.", language="en").text
    assert f". {following} left." in said
