"""Segments: nothing lost, nothing too long, cut where a speaker would breathe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import TextConfig
from pipeline.text.markup import CONTROL_TAGS, neutralise, split_tags
from pipeline.text.segment import letter_weight, max_steps, split

CONFIG = TextConfig(max_segment_chars=40, first_segment_chars=20)
TEXTS = st.lists(
    st.sampled_from(["hello", "a", "B", " ", ". ", ", ", "。", "，", "、", "你好", "世", ".", "\n", *sorted(CONTROL_TAGS)[:4]]),
    max_size=120,
).map("".join)  # fmt: skip


def pieces(text: str, config: TextConfig = CONFIG) -> list[str]:
    return [segment.text for segment in split(text, config)]


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(TEXTS | st.text().map(neutralise))
def test_nothing_is_lost_or_reordered(text):
    assert squeezed("".join(pieces(text))) == squeezed(text)


@given(TEXTS | st.text().map(neutralise))
def test_every_segment_is_within_the_limit_and_not_empty(text):
    for index, piece in enumerate(pieces(text)):
        assert piece == piece.strip()
        assert piece
        assert letter_weight(piece) <= (CONFIG.max_segment_chars if index else CONFIG.first_segment_chars)


@given(TEXTS)
def test_tags_are_never_cut(text):
    tags = [piece for piece in split_tags(text) if piece in CONTROL_TAGS]
    found = [piece for segment in pieces(text) for piece in split_tags(segment) if piece in CONTROL_TAGS]
    assert found == tags


@given(TEXTS)
def test_segments_are_numbered_and_the_last_one_knows(text):
    segments = split(text, CONFIG)
    assert [segment.index for segment in segments] == list(range(len(segments)))
    assert [segment.is_last for segment in segments] == [False] * (len(segments) - 1) + [True] * bool(segments)


@given(TEXTS)
def test_text_that_fits_is_one_segment(text):
    if letter_weight(text) <= 20:
        assert len(pieces(text)) <= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two. Three.", ["One. Two. Three."]),
        ("One two. Three four. Five six.", ["One two. Three four.", "Five six."]),
        ("No stop here, but a comma and then much more", ["No stop here,", "but a comma and then much more"]),
        ("only words and spaces in a long row without stops", ["only words and", "spaces in a long row without stops"]),
        ("你好。今天天气很好，我们出去。", ["你好。", "今天天气很好，我们出去。"]),
        ("一二三四五六七八九十", ["一二三四五六", "七八九十"]),
        ("Yes. So Mr. Smith left, e.g. today. Bye.", ["Yes.", "So Mr. Smith left, e.g. today. Bye."]),
        ("Come, Mr. Smith and all", ["Come,", "Mr. Smith and all"]),
        ("x" * 70, ["x" * 20, "x" * 40, "x" * 10]),
    ],
)  # fmt: skip
def test_cuts(text, expected):
    assert pieces(text) == expected


def test_a_stop_is_never_left_alone():
    assert pieces("x" * 20 + ".") == ["x" * 19, "x."]


def test_the_first_segment_is_the_short_one():
    first, second, *_ = pieces("aaaa " * 40)
    assert letter_weight(first) <= 20 < letter_weight(second) <= 40


def test_a_first_limit_above_the_other_does_not_lengthen_it():
    config = TextConfig(max_segment_chars=16, first_segment_chars=60)
    assert pieces("aaaa " * 20, config)[0] == "aaaa aaaa aaaa"


def test_weights():
    assert letter_weight("abc d") == 5
    assert letter_weight("你好a") == 7
    assert letter_weight("[uv_break]") == 3


def test_step_caps():
    config = TextConfig(base_steps=10, steps_per_char=1.5)
    assert max_steps("", config, 1000) == 10
    assert max_steps("abc", config, 1000) == 15  # 10 + ceil(4.5)
    assert max_steps("你", config, 1000) == 15
    assert max_steps("abc" * 1000, config, 1000) == 1000


def test_a_hundred_thousand_characters_are_cut_in_linear_time():
    assert len(pieces("x" * 100_000)) == 1 + -(-(100_000 - 20) // 40)
