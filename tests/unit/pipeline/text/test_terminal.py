"""Terminal: colour codes and arrows are dropped and counted, and the text between them is read as if they were not there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import normalize
from tests.support.effort import examples

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


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("5 → 8", "five to eight"),
        ("x -> y", "x to y"),
        ("北京→上海", "北京到上海"),
        ("设置→通用→关于", "设置，通用，关于"),
        ("File → Settings → Keymap", "File, Settings, Keymap"),
        ("← Back", "Back"),
        ("[32mPASS[0m all", "PASS all"),
        (r"\033[31mred\033[0m", "red"),
        ("[5m] apart", "five meters apart"),
        ("use the --help flag", "use the dash dash help flag"),
        ("run it with -v", "run it with dash v"),
        ("well -- no", "well, no"),
        (":rocket: Launch", "Launch"),
        ("Settings > General > About", "Settings, General, About"),
        ("a > b", "a is greater than b"),
        ("run a && b || c", "run a and b or c"),
        ("echo $HOME", "echo HOME"),
        ("at 10:30:15 sharp", "at ten thirty and fifteen seconds sharp"),
    ],
)
def test_signs_of_a_screen(written, spoken):
    assert normalize(written).text == spoken


def test_a_length_in_a_bracket_is_no_colour():
    assert normalize("go [45min later").text == "go forty five minutes later"
    assert normalize("a [31mred[0m b").text == "a red b", "a colour without its escape character is one of a pair"
