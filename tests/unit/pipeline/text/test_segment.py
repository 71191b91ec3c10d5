"""Segments: nothing lost, nothing too long, cut where a speaker would breathe."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.spec import CONTROL_TAGS
from pipeline.text.markup.control_tags import neutralise, split_tags
from pipeline.text.segment import (
    LEAST_STEPS_OF_A_WORD,
    SegmentLimits,
    least_steps,
    letter_weight,
    max_steps,
    predicted_steps,
    split,
)

CONFIG = SegmentLimits(first_clause_chars=8, first_segment_chars=20, min_segment_chars=20, max_segment_chars=40)
TEXTS = st.lists(
    st.sampled_from(["hello", "a", "B", " ", ". ", ", ", "。", "，", "、", "你好", "世", ".", "\n", *sorted(CONTROL_TAGS)[:4]]),
    max_size=120,
).map("".join)  # fmt: skip


def pieces(text: str, config: SegmentLimits = CONFIG) -> list[str]:
    return [text[start:stop] for start, stop in split(text, config)]


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
def test_text_that_fits_is_one_segment(text):
    if letter_weight(text) <= 20:
        assert len(pieces(text)) <= 1


WHOLE = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 60)), max_size=8)


def in_order(text: str, drawn: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of the text that do not overlap, from (gap, length) pairs."""
    ranges, place = [], 0
    for gap, length in drawn:
        start, stop = min(place + gap, len(text)), min(place + gap + length, len(text))
        if start < stop:
            ranges.append((start, stop))
        place = stop
    return ranges


@given(TEXTS, WHOLE)
def test_what_belongs_together_is_never_cut(text, drawn):
    whole = in_order(text, drawn)
    ranges = split(text, CONFIG, whole=whole)
    for start, stop in whole:
        kept = (start + len(text[start:stop]) - len(text[start:stop].lstrip()), start + len(text[start:stop].rstrip()))
        if letter_weight(text[start:stop]) <= CONFIG.max_segment_chars:
            assert not any(kept[0] < cut < kept[1] for found in ranges for cut in found), "a cut inside"


@given(TEXTS, WHOLE)
def test_nothing_is_lost_and_caps_hold_around_what_belongs_together(text, drawn):
    ranges = split(text, CONFIG, whole=in_order(text, drawn))
    assert squeezed("".join(text[slice(*found)] for found in ranges)) == squeezed(text)
    assert all(letter_weight(text[slice(*found)]) <= CONFIG.max_segment_chars for found in ranges)


@given(st.text(alphabet="e\u0301\u0308\u200d\ufe0f👩🎓你 ", max_size=80))
def test_a_character_keeps_its_marks(text):
    for start, _ in split(text, CONFIG):
        assert (
            start == 0
            or text[start - 1].isspace()
            or (
                not unicodedata.category(text[start]).startswith("M")
                and text[start] not in "\u200d\ufe0f"
                and text[start - 1] not in "\u200d\ufe0f"
            )
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two. Three.", ["One. Two. Three."]),
        ("One two. Three four. Five six.", ["One two.", "Three four. Five six."]),
        ("Yes, one two. Three four.", ["Yes, one two.", "Three four."]),
        ("No stop here, but a comma and then much more", ["No stop here,", "but a comma and then much more"]),
        ("only words and spaces in a long row without stops", ["only words and", "spaces in a long row without stops"]),
        ("你好。今天天气很好，我们出去。", ["你好。", "今天天气很好，我们出去。"]),
        ("今天天气很好，我们出去。", ["今天天气很好，", "我们出去。"]),
        ("一二三四五六七八九十", ["一二三四五六", "七八九十"]),
        ("Yes. So Mr. Smith left, e.g. today. Bye.", ["Yes.", "So Mr. Smith left, e.g. today. Bye."]),
        ("Come, Mr. Smith and all", ["Come,", "Mr. Smith and all"]),
        ("x" * 70, ["x" * 20, "x" * 30, "x" * 20]),
    ],
)  # fmt: skip
def test_cuts(text, expected):
    assert pieces(text) == expected


def test_later_pieces_end_at_the_last_sentence_that_is_long_enough_else_at_a_clause():
    config = SegmentLimits(first_clause_chars=1, first_segment_chars=8, min_segment_chars=20, max_segment_chars=40)
    text = "Go. Now this is a sentence. And this one goes on, with a clause that is far too long for it."
    assert pieces(text, config) == [
        "Go.", "Now this is a sentence.", "And this one goes on,", "with a clause that is", "far too long for it.",
    ]  # fmt: skip


def test_no_leftover_of_a_word_or_two():
    config = SegmentLimits(first_clause_chars=1, first_segment_chars=8, min_segment_chars=20, max_segment_chars=40)
    *_, last = pieces("Go. aaaa bbbb cccc dddd eeee ffff gggg hhhh ii", config)
    assert letter_weight(last) >= 20


def test_only_a_request_begins_with_a_short_piece():
    text = "aaaa " * 20
    (first, *_), (other, *_) = split(text, CONFIG), split(text, CONFIG, is_first=False)
    assert first[1] <= 20 < other[1]


def test_a_stop_is_never_left_alone():
    assert pieces("x" * 20 + ".") == ["x" * 19, "x."]


def test_the_first_segment_is_the_short_one():
    first, second, *_ = pieces("aaaa " * 40)
    assert letter_weight(first) <= 20 < letter_weight(second) <= 40


def test_a_first_limit_above_the_other_does_not_lengthen_it():
    config = SegmentLimits(max_segment_chars=16, first_segment_chars=60)
    assert pieces("aaaa " * 20, config)[0] == "aaaa aaaa aaaa"


def test_weights():
    assert letter_weight("abc d") == 5
    assert letter_weight("你好a") == 7
    assert letter_weight("[uv_break]") == 3


def test_step_caps():
    config = SegmentLimits(base_steps=10, steps_per_char=1.5)
    assert max_steps("", config, 1000) == 10
    assert max_steps("abc", config, 1000) == 15  # 10 + ceil(4.5)
    assert max_steps("你", config, 1000) == 15
    assert max_steps("abc" * 1000, config, 1000) == 1000


def test_a_hundred_thousand_characters_are_cut_in_linear_time():
    assert len(pieces("x" * 100_000)) == 1 + -(-(100_000 - 20) // 40)


@pytest.mark.parametrize(
    ("text", "speed_token", "steps"),
    [
        ("Hello there.", 5, 10),
        ("Hello there.", 0, 10),
        ("Hello there.", 9, 5),
        ("Hello [speed_9] there. [laugh]", 5, 5),
        ("今天天气真不错，我们走。", 5, 30),
        ("A", 5, 5),
        ("Hi.", 9, 2),
        ("好", 5, 5),
        ("[laugh].", 5, 0),
    ],
)
def test_fewer_steps_than_these_say_nothing(text, speed_token, steps):
    assert least_steps(text, speed_token) == steps


@given(TEXTS)
def test_a_segment_of_ordinary_length_is_far_above_the_least(text):
    least = least_steps(text, 5)
    assert 3 * least <= predicted_steps(text) or least == LEAST_STEPS_OF_A_WORD
    assert max(3 * least, predicted_steps(text)) <= max_steps(text, CONFIG, 10_000)
