"""Edits: tags, tokens, notes, faces and ends of lines: nothing of them is heard, and every other letter is."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.incremental import GrowingText
from pipeline.text.lines import breath, goes_on
from pipeline.text.markup.dialogue import read_script
from pipeline.text.normalize import NormalizeOptions, normalize
from tests.support.effort import examples

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
WORDS = st.lists(st.sampled_from(["boat", "river", "stone", "garden", "letter", "window"]), min_size=1, max_size=12)


@settings(max_examples=examples(200))
@given(SOUP)
def test_spans_tile_whatever_the_markup(text: str):
    spoken = normalize(text)
    places = [place for span in spoken.spans for place in range(span.source_start, span.source_stop)]
    assert places == list(range(len(text)))
    assert "<" not in spoken.text


@settings(max_examples=examples(100))
@given(WORDS, st.sampled_from(["b", "i", "span", "em"]), st.integers(0, 11))
def test_a_tag_inside_a_word_leaves_the_word(words: list[str], name: str, number: int):
    plain = " ".join(words)
    place = min(number, len(plain))
    marked = f"{plain[:place]}<{name}>{plain[place:]}</{name}>"
    assert normalize(marked).text == normalize(plain).text


@settings(max_examples=examples(100))
@given(WORDS, st.sampled_from(["\n", "\r\n", "\u2028", "  \n "]), st.integers(20, 60))
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
