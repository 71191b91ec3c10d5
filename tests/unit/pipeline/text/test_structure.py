"""Structure: the markup of lines, formulas and terminal codes are read or dropped and counted, never spoken as signs."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pipeline.text.incremental import GrowingText
from pipeline.text.lines import breath, goes_on
from pipeline.text.markup.dialogue import read_script
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


# Edits: tags, tokens, notes, faces and ends of lines: nothing of them is heard, and every other letter is.


SHAPES = (
    *("<b>", "</b>", "<br/>", "<think>", "</think>", "<script>", "</script>", "<sup>", "</sup>", "<p class='a'>", '<x y="z">'),
    *(
        "<|im_end|>",
        "[pause:1s]",
        "[1]",
        "[^1]",
        "==",
        "++",
        "~",
        "`",
        "```",
        "<!--",
        "-->",
        "{#a}",
        ":)",
        "(^_^)",
        "\n",
        "\r\n",
        "\n\n",
    ),
    *(
        "- ",
        "> ",
        "words",
        "The",
        "is",
        "42",
        "船",
        "在",
        ".",
        ",",
        "-",
        " ",
        "<",
        ">",
        "[",
        "]",
        "(",
        ")",
        "\u2028",
        "é",
        "😀",
    ),
)
SOUP = st.lists(st.sampled_from(SHAPES), max_size=30).map("".join)
EDITED_WORDS = st.lists(st.sampled_from(["boat", "river", "stone", "garden", "letter", "window"]), min_size=1, max_size=12)


@settings(max_examples=examples(200))
@given(SOUP)
def test_spans_tile_whatever_the_markup(text: str):
    spoken = normalize(text)
    places = [place for span in spoken.spans for place in range(span.source_start, span.source_stop)]
    assert places == list(range(len(text)))
    assert "<" not in spoken.text


@settings(max_examples=examples(100))
@given(EDITED_WORDS, st.sampled_from(["b", "i", "span", "em"]), st.integers(0, 11))
def test_a_tag_inside_a_word_leaves_the_word(words: list[str], name: str, number: int):
    plain = " ".join(words)
    place = min(number, len(plain))
    marked = f"{plain[:place]}<{name}>{plain[place:]}</{name}>"
    assert normalize(marked).text == normalize(plain).text


@settings(max_examples=examples(100))
@given(EDITED_WORDS, st.sampled_from(["\n", "\r\n", "\u2028", "  \n "]), st.integers(20, 60))
def test_a_paragraph_is_read_however_its_lines_are_wrapped(words: list[str], end: str, width: int):
    sentence = f"The {' '.join(words)} of the {' '.join(words)} was there for the {' '.join(words)}."
    lines, line = list[str](), ""
    for word in sentence.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    wrapped = end.join([*lines, line])
    expected = normalize(sentence).text
    assert normalize(wrapped).text == expected
    growing = GrowingText(sentences=True)
    assert not growing.add(wrapped), "an end of a line within a sentence is none of a part"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "lines",
    [
        ["Milk", "Eggs", "Bread"], ["milk", "eggs", "bread"], ["Name: Ann", "Age: 5"], ["- one", "- two"], ["1. one", "2. two"],
        ["Chapter One", "The Title"], ["床前明月光", "疑是地上霜"], ["It ended.", "then it began"], ["# Title", "text here"],
        ["call the bank", "pay rent", "buy milk"],
    ],
)  # fmt: skip
def test_lists_labels_verses_and_headings_stay_apart(lines: list[str], end: str):
    stops = len(re.findall("[.。]", normalize(end.join(lines)).text.rstrip(".。")))
    assert stops >= len(lines) - 1


def test_a_part_does_not_end_in_a_channel_that_is_not_heard():
    growing = GrowingText(sentences=True)
    assert growing.add("<|channel|>analysis<|message|>It is about boats. The answer is simple enough. ") == []
    parts = growing.add("Done.<|end|><|start|>assistant<|channel|>final<|message|>The boat was red and old. Another one came. ")
    assert normalize(parts[0].text).text == "The boat was red and old."


def test_markup_is_read_sign_by_sign_where_it_is_off():
    plain = NormalizeOptions(html=False, markdown=False)
    assert normalize("<b>a</b> [1]", options=plain).text == "b, a, b, one"


def test_a_part_does_not_end_in_what_a_model_thinks():
    growing = GrowingText(sentences=True)
    assert growing.add("<think>It is a question about boats. The answer is simple enough. ") == []
    parts = growing.add("So I say it.</think>The boat was red and old. Another sentence follows here. ")
    assert normalize(parts[0].text).text == "The boat was red and old."


@pytest.mark.parametrize(("before", "after", "rank"), [
    ("a place that the", "engineer", 0), ("and in a", "place", 0), ("it rained", "and we", 3), ("two million", "three", 3),
    ("the old boat", "in the", 2), ("特别长", "的句子", 0), ("他来了", "而且说", 3), ("Dr.", "Smith", 0), ("room 5", "b", 0),
    ("the United", "States", 0), ("the States", "of America", 0),
])  # fmt: skip
def test_where_a_speaker_breathes(before: str, after: str, rank: int):
    assert breath(before, after) == rank


def test_a_line_goes_on_by_its_end_and_the_next_beginning():
    assert goes_on("He went to the", "United States")
    assert not goes_on("He went home", "United States")
    assert goes_on("小狗睡在", "门边")


@pytest.mark.parametrize("line", [
    "**Ben:** Hi.", "**Ben**: Hi.", "*Ben*: Hi.", "__Ben__: Hi.", "Ben:Hi.", "[Ben]: Hi.", "<Ben> Hi.", "- Ben: Hi.",
    "1. Ben: Hi.", "“Ben”: Hi.", "Ben (quietly): Hi.", "**Ben (quietly):** Hi.", "**Ben** *(quietly)*: Hi.",
    "Ben [sighs]: Hi.", "BEN: Hi.",
    "Ben> Hi.", "Ben | Hi.", "Ben\tHi.", "Ben - Hi.", "Ben — Hi.", "BEN. Hi.", "BEN\nHi.", "**Ben**\nHi.",
    "[09:41] Ben: Hi.", "09:41 Ben: Hi.", "[12/03/2024, 9:15:22 PM] Ben: Hi.", "2024-03-12, 09:15 - Ben: Hi.",
    "BEN (O.S.)\nHi.",
    "> Ben: Hi.", "### Ben: Hi.", "【Ben】：Hi.", "Ben（小声）：Hi.", "`Ben`: Hi.",
])  # fmt: skip
def test_a_name_is_found_as_models_write_it(line: str):
    turns = read_script(f"```\nAnna: Hello.\n---\n{line}\n```", ["Anna", "Ben"])
    assert [(turn.speaker, turn.text) for turn in turns] == [("Anna", "Hello."), ("Ben", "Hi.")]


@pytest.mark.parametrize(
    "line",
    [
        "Ben left.",
        "Ben, who - as we know - left",
        "Ben's. Hi",
        "benign | Hi",
        "Ben?",
        "09:41 is late",
        "- Note: bring milk",
        "10:30 is late",
        "see http://a.b",
        "  Ben: indented",
        "[door opens]",
        "(Ben leaves)",
    ],
)
def test_other_lines_go_on_with_the_turn(line: str):
    assert len(read_script(f"Anna: Hello.\n{line}", ["Anna", "Ben"])) == 1
