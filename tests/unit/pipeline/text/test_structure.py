"""Structure: the markup of lines is dropped, counted and never spoken, as Markdown's own parser understands it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pipeline.text.normalize import NormalizeOptions, normalize
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
def test_the_words_are_those_that_markdown_shows(document):
    assert re.findall("[a-z]+", said(document)) == rendered_words(document)


@settings(max_examples=examples(40))
@given(DOCUMENTS)
def test_nothing_but_markup_is_dropped(document):
    assert {warning.code for warning in normalize(document).warnings} <= {"markup", "punctuation"}


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


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("- [x] Buy milk\n- [ ] Call mom", "Buy milk. Call mom"),
        ("- one\n  - two\n    - three", "one. two. three"),
        ("Title\n=====\ntext", "Title. text"),
        ("+----+----+\n| a | b |\n+----+----+", "a, b."),
        ("Name | Age\n--- | ---\nTom | 25", "Name, Age. Tom, twenty five"),
        ("=== RUN ===\nok", "RUN. ok"),
        ("text[^1]\n\n[^1]: A note", "text. A note"),
        ("$ npm install", "npm install"),
        ("1.苹果\n2.梨", "一，苹果。二，梨"),
        ("1.5 kg\n2.5 kg", "one point five kilograms. two point five kilograms"),
        ("10.5%", "ten point five percent"),
        ("#1 fan", "number one fan"),
        ("-5 today", "minus five today"),
    ],
)
def test_lines(written, spoken):
    assert said(written) == spoken


def test_line_markup_is_spoken_plainly_where_markdown_is_off():
    plain = normalize("| a | b |", options=NormalizeOptions(markdown=False))
    assert plain.text == "a, b"
    assert plain.warnings == ()
