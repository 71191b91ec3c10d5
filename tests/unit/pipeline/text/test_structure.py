"""Structure: the markup of lines, formulas and terminal codes are read or dropped and counted, never spoken as signs."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pipeline.text.normalize import NormalizeOptions, normalize
from pipeline.text.normalize.numbers import english
from pipeline.text.normalize.tex import tex_words
from tests.support.effort import examples

WORDS = st.lists(st.sampled_from(["apples", "river", "stone", "window", "garden", "letter"]), min_size=1, max_size=4).map(
    " ".join
)
CELLS = st.lists(WORDS, min_size=2, max_size=4)
INLINE = st.builds(
    lambda style, words: style.replace("{}", words),
    st.sampled_from(
        ["{}", "**{}**", "*{}*", "_{}_", "`{}`", "~~{}~~", "[{}](https://example.com/a)", "[{}](./a.md)", "![{}](a.png)"]
    ),
    WORDS,
)
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def table(cells: list[list[str]]) -> str:
    width = min(map(len, cells))
    head, *rows = [f"| {' | '.join(row[:width])} |" for row in cells]
    return "\n".join([head, f"|{'---|' * width}", *rows])


BLOCKS = st.one_of(
    INLINE,
    st.builds("{} {}".format, st.sampled_from(["#", "##", "######"]), INLINE),
    st.lists(INLINE, min_size=1, max_size=3).map(lambda items: "\n".join(f"- {item}" for item in items)),
    st.lists(INLINE, min_size=1, max_size=3).map(lambda items: "\n".join(f"* {item}" for item in items)),
    st.lists(INLINE, min_size=1, max_size=2).map(lambda items: "\n".join(f"> {item}" for item in items)),
    st.lists(WORDS, min_size=1, max_size=2).map(lambda lines: "```python\n" + "\n".join(lines) + "\n```"),
    st.lists(CELLS, min_size=2, max_size=3).map(table),
    st.just("---"),
)
DOCUMENTS = st.lists(BLOCKS, min_size=1, max_size=5).map("\n\n".join)


def rendered_words(document: str) -> list[str]:
    """The words that Markdown's own parser shows, in order."""
    shown = []
    for token in PARSER.parse(document):
        shown += [token.content] if token.type in ("fence", "code_block") else []
        for child in token.children or []:
            shown.append(child.content if child.type in ("text", "code_inline", "image") else " ")
    return re.findall("[a-z]+", " ".join(shown))


def said(text: str) -> str:
    return normalize(text).text


@settings(max_examples=examples(40))
@given(DOCUMENTS)
def test_the_words_are_those_that_markdown_shows_and_only_markup_is_dropped(document):
    spoken = normalize(document)
    assert re.findall("[a-z]+", spoken.text) == rendered_words(document)
    assert {warning.code for warning in spoken.warnings} <= {"markup", "punctuation"}


@settings(max_examples=examples(40))
@given(st.lists(CELLS, min_size=2, max_size=4))
def test_cells_are_separated_by_pauses_and_rows_by_stops(cells):
    width = min(map(len, cells))
    assert said(table(cells)).rstrip(".") == ". ".join(", ".join(row[:width]) for row in cells)


@pytest.mark.parametrize("sign", ["{}. ", "{}) ", "  {}. ", "> {}. "])
@settings(max_examples=examples(40))
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_the_number_of_an_item_is_followed_by_a_pause_not_by_a_stop(sign, items):
    lines = [sign.format(number) + item for number, item in enumerate(items, 1)]
    names = ["one", "two", "three", "four"]
    assert said("\n".join(lines)) == ". ".join(f"{name}, {item}" for name, item in zip(names, items, strict=False))


@pytest.mark.parametrize(("written", "spoken"), [
    ("$x \\neq 0$", "x is not equal to zero"), ("\\nu = 5", "nu equals five"), ("#1 fan", "number one fan"),
    ("C:\\new\\tools", "C colon backslash new backslash tools"),
])  # fmt: skip
def test_what_no_row_of_a_table_can_hold(written, spoken):
    assert normalize(written, language="en").text == spoken


def test_line_markup_is_spoken_plainly_where_markdown_is_off():
    plain = normalize("| a | b |", options=NormalizeOptions(markdown=False))
    assert plain.text == "a, b"
    assert plain.warnings == ()


# Math: formulas are read as a lecturer says them, and the dollars of money stay money.


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
@example("x^{x^{x}}", r"\({}\)")  # no face
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


# Terminal: colour codes and arrows are dropped and counted, and the text between them is read as if they were not there.


ESCAPES = st.one_of(
    st.builds("\x1b[{}m".format, st.sampled_from(["", "0", "31", "1;32", "38;5;196", "48;2;1;2;3"])),
    st.sampled_from(["\x1b[2K", "\x1b[1G", "\x1b[?25l", "\x1b[10;20H", "\x1b]0;title\x07", "\x1b(B", "\x1b7"]),
)
TEXTS = st.sampled_from(
    ["All 5 tests passed.", "错误：找不到 3 个文件", "Error: exit code 2", "完成了50%。", "3 warnings, 10 errors"]
)


@settings(max_examples=examples(40))
@given(TEXTS, ESCAPES, ESCAPES, st.data())
def test_escapes_anywhere_between_words_change_no_word(text, first, second, data):
    places = [0, len(text), *(place for place in range(1, len(text)) if text[place] == " ")]
    place = data.draw(st.sampled_from(places))
    found = normalize(first + text[:place] + second + text[place:])
    assert found.text == normalize(text).text
    assert {warning.code: warning.count for warning in found.warnings}["terminal_code"] == len(first + second)


@settings(max_examples=examples(40))
@given(st.sampled_from(["→", "->", "=>", "-->", "==>", "➜", "⟶", "❯", "»", "▶"]), TEXTS)
def test_an_arrow_before_a_line_is_not_spoken(arrow, text):
    assert normalize(f"{arrow} {text}").text == normalize(text).text


def test_a_length_in_a_bracket_is_no_colour():
    assert normalize("go [45min later").text == "go forty five minutes later"
    assert normalize("a [31mred[0m b").text == "a red b", "a colour without its escape character is one of a pair"
