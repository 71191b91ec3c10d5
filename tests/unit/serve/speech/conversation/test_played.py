"""Played: a place in the text for every moment of the audio."""

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.incremental import GrowingText
from serve.speech.conversation.played import Listener, Played, word_ends
from tests.support.clock import HeldClock

FIRST, SECOND = "One two three. ", "Four five."


def listener(clock: HeldClock, *, whole: bool = True) -> Listener:
    """Two parts: 1.5 s of the first, and 1 s of the second, which may be all of it."""
    growing, progress = GrowingText(sentences=False), Listener(clock)
    for text, sizes in ((FIRST, (1.0, 0.5)), (SECOND, (1.0,))):
        growing.add(text)
        part = growing.flush()
        assert part is not None
        progress.began(part)
        for size in sizes:
            progress.received(size)
        if text == FIRST or whole:
            progress.ended()
    return progress


@pytest.mark.parametrize(
    ("played_s", "characters", "words", "is_exact"),
    [
        (0.0, 0, 0, True),
        (0.7, 3, 1, False),  # 7 of 15 letters: within "two"
        (0.75, 7, 2, False),
        (1.49, 14, 3, False),
        (1.5, 14, 3, True),
        (2.0, 19, 4, False),
        (2.5, 25, 5, True),
        (99.0, 25, 5, True),
    ],
)
def test_what_the_client_played_is_a_place_in_the_text(played_s, characters, words, is_exact):
    played = listener(HeldClock()).played(played_s, speed=1.0)
    played_s = min(played_s, 2.5)
    assert played == Played(played_s, characters, words, is_exact, round((2.5 - played_s) * 46.875))


def test_a_part_that_was_not_sent_whole_is_not_heard_whole():
    played = listener(HeldClock(), whole=False).played(2.5, speed=4.0)
    assert (played.characters, played.words, played.is_exact) == (25, 5, False), "at this speed it takes less than that"
    slow = listener(HeldClock(), whole=False).played(1.6, speed=0.25)
    assert (slow.characters, slow.words, slow.is_exact) == (14, 3, False)


def test_without_a_word_of_the_client_the_clock_says_what_can_have_been_played():
    clock = HeldClock()
    progress = listener(clock)
    assert progress.lead_s == pytest.approx(2.5)
    clock.now += 0.75
    assert progress.played(None, speed=1.0).played_s == pytest.approx(0.75)
    clock.now += 10
    assert progress.lead_s == 0
    assert progress.played(None, speed=1.0) == Played(2.5, 25, 5, True, 0)
    assert Listener(clock).played(None, speed=1.0) == Played(0.0, 0, 0, True, 0)


@given(played_s=st.lists(st.floats(0, 4), min_size=2).map(sorted), whole=st.booleans())
def test_later_is_never_less(played_s, whole):
    places = [listener(HeldClock(), whole=whole).played(played, speed=1.0) for played in played_s]
    for earlier, later in pairwise(places):
        assert earlier.characters <= later.characters
        assert earlier.words <= later.words
        assert earlier.unheard_steps >= later.unheard_steps


def test_chinese_is_counted_by_characters():
    growing, progress = GrowingText(sentences=False), Listener(HeldClock())
    growing.add("今天好。OK then")
    part = growing.flush()
    assert part is not None
    progress.began(part)
    progress.received(1.0)
    progress.ended()
    assert progress.played(1.0, speed=1.0).words == 5


@given(st.text(st.characters() | st.sampled_from("ab_1 .!'-你好\n\u3000"), max_size=60))
def test_words_end_where_a_regular_expression_says(text):
    chinese = "\u3400-\u9fff\uf900-\ufaff"
    word = rf"[{chinese}]|[^\s{chinese}]*(?![{chinese}])\w[^\s{chinese}]*"
    assert list(word_ends(text)) == [match.end() for match in re.finditer(word, text)]


def test_a_day_long_call_costs_a_look_at_its_lead_no_more_than_a_short_one():
    growing, progress = GrowingText(sentences=False), Listener(HeldClock())
    growing.add("a" + "!" * 16_000)
    part = growing.flush()
    assert part is not None
    began = time.process_time()
    for _ in range(100):
        progress.began(part)
        progress.received(1.0)
        progress.ended()
    assert progress.sent_s == 100.0
    assert progress.played(49.5, speed=1.0).words == 49
    assert time.process_time() - began < 5.0, "a regular expression looked back over the signs for minutes"
