"""The refine guard: tags and fillers may come in, no word may go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.spec import CONTROL_TAGS
from pipeline.text.refine_guard import FILLERS, accepts, diff, words
from pipeline.types import Change

WORDS = st.lists(st.sampled_from(["hello", "you", "know", "like", "那", "个", "你", "好", "x"]), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("source", "refined"),
    [
        ("Hello there.", "hello [uv_break] there"),
        ("Hello there.", "um hello you know there [laugh]"),
        ("你好，世界。", "嗯你好[uv_break]那个世界就是说"),
        ("you go", "you know you go"),
        ("I like it so", "like i like it so so"),
        ("那个人", "那个那个人"),
        ("a [laugh] b", "a b"),
    ],
)
def test_additions_that_are_allowed(source, refined):
    assert accepts(source, refined)


@pytest.mark.parametrize(
    ("source", "refined"),
    [
        ("Hello there.", "hello"),
        ("Hello there.", "there hello"),
        ("Hello there.", "hello their"),
        ("Hello there.", "hello there friend"),
        ("Hello there.", ""),
        ("你好世界", "你好视界"),
        ("a b", "a b " + "um " * 50),
        ("a b", "a b " + "[laugh]" * 50),
    ],
)
def test_losses_changes_and_floods_that_are_not(source, refined):
    assert not accepts(source, refined)


@given(WORDS, st.lists(st.tuples(st.integers(0, 12), st.sampled_from([*FILLERS, *sorted(CONTROL_TAGS)])), max_size=1))
def test_fillers_and_tags_anywhere_are_accepted(meant, added):
    refined = list(meant)
    for place, filler in added:
        refined.insert(min(place, len(refined)), filler)
    assert accepts(" ".join(meant), " ".join(refined))


@given(WORDS)
def test_a_word_that_is_lost_is_noticed(meant):
    for place in range(len(meant) + 1):
        with_one_more = [*meant[:place], "unique", *meant[place:]]
        assert not accepts(" ".join(with_one_more), " ".join(meant))
        assert not accepts(" ".join(meant), " ".join(with_one_more))


@given(WORDS, WORDS)
def test_the_difference_leads_from_one_to_the_other(before, after):
    changes = diff(" ".join(before), " ".join(after))
    assert words(" ".join(change.source for change in changes)) == words(" ".join(before))
    assert words(" ".join(change.refined for change in changes)) == words(" ".join(after))
    assert all((change.op == "equal") == (change.source == change.refined) for change in changes)


def test_long_texts_are_not_compared_word_by_word():
    long = "so " * 10_000
    assert [change.op for change in diff(long, long)] == ["equal"]
    assert [change.op for change in diff(long, f"um {long}")] == ["replace"]


def test_the_difference_names_what_came_in():
    assert diff("Hello there.", "hello [uv_break] there") == [
        Change("equal", "hello", "hello"), Change("insert", "", "[uv_break]"), Change("equal", "there", "there"),
    ]  # fmt: skip
