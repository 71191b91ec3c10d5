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


@pytest.mark.parametrize(("written", "spoken"), [
    ("Run ```npm install``` first.", "Run npm install first."), ("a<b and c>d", "a is less than b and c is greater than d"),
    ("reasons</think>Yes.", "Yes."), ("<think>reasons", ""), ("Use the <think> tag.", "Use the tag."),
    ("Bees count.[12] They do.", "Bees count. They do."), ("see [7] or [docs][7]", "see seven or docs"),
    ("10<sup>6</sup> m", "ten to the power of six meters"), ("the 3<sup>rd</sup> day", "the third day"),
    ("storm<sup>1</sup> came", "storm came"), ("CO~2~", "C O two"), ("I use .NET.", "I use dot NET."),
    ("It ended.Then he", "It ended. Then he"), ("over-\nland, twenty-\nfive", "overland, twenty five"),
    ("<tool_call>{\"a\": 1}</tool_call>Done.", "Done."), ("List<String> here", "List, String, here"),
    ("> a line that goes on\n> here", "a line that goes on here"), ("Dear all,\nwe meet", "Dear all, we meet"),
])  # fmt: skip
def test_what_is_heard_of_markup(written: str, spoken: str):
    assert normalize(written).text == spoken


@pytest.mark.parametrize(("written", "spoken"), [
    ("up *2.9* and **3.5** or ***4***", "up two point nine and three point five or four"), ("花了*12.5*元", "花了十二点五元"),
    ("it is 3*4*5", "it is three times four times five"), ("按*键返回，按*键", "按星号键返回，按星号键"),
    ("of *$1,200* each", "of one thousand two hundred dollars each"), ("*One* is *x* here", "One is x here"),
    ("[THINK]So.[/THINK]Yes.", "Yes."), ("Use the [THINK] token.", "Use the token."), ("◁think▷So.◁/think▷Yes.", "Yes."),
    ("<seed:think>So</seed:think>Yes.", "Yes."), ("<|begin_of_thought|>So<|end_of_thought|>Yes.", "Yes."),
    ("<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>", "Yes."),
    ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>Yes.", "Yes."),
    ("<|channel|>analysis<|message|>So", ""), ("the old channel is on", "the old channel is on"),
    ("[b]Now[/b] it is [color=red]red[/color].", "Now it is red."), ("see [url=http://a.b/c]this[/url]", "see this"),
    ("[img]http://a.b/c.png[/img]So", "So"), ("[quote=Ann]Yes.[/quote]\nNo.", "Yes. No."),
    ("take a[i] or [b] now", "take a i or b now"),
    ("[list]\n[*]one\n[*]two\n[/list]", "one. two."), ("the [size] of it", "the size of it"),
    ("a [[page|boat]] and [[river]]s", "a boat and rivers"), ("[[File:a.png|thumb|b]]So", "So"),
    ("[https://a.b old] tree", "old tree"),
    ("== Past ==\nIt rained.", "Past. It rained."), ("a == b", "a equals b"), ("Dear {{name}},", "Dear name,"),
    ("{{convert|5|km}} off{{cn}}, {{lang|de|Haus}}", "five kilometers off, Haus"),
    ("rain.<ref name=\"a\">Press</ref> So", "rain. So"),
])  # fmt: skip
def test_emphasis_channels_bbcode_and_wikitext(written: str, spoken: str):
    assert normalize(written).text == spoken


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
