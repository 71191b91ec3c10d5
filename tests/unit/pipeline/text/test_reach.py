"""Reach: the shortcut past rules that cannot match leaves out none that can."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize.reach import Reach, may_match
from pipeline.text.normalize.scan import _ORDER
from tests.support.effort import examples
from tests.unit.pipeline.text.test_normalize import ANY_TEXT, CHINESE, ENGLISH

EVERY_RULE = Reach(_ORDER)


def check(text: str) -> None:
    for place in range(len(text)):
        near = EVERY_RULE.at(text, place)
        for one in _ORDER:
            found = one.pattern.match(text, place)
            assert one in near or not found or found.end() == place, (one.pattern.pattern, text, place)


@pytest.mark.slow
def test_no_rule_that_matches_is_left_out_of_the_tables():
    for source, _, _ in CHINESE + ENGLISH:
        check(source)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(ANY_TEXT, st.sampled_from([row[0] for row in CHINESE + ENGLISH]), st.integers(0, 40))
def test_no_rule_that_matches_is_left_out_of_any_text(text, row, cut):
    check(row[:cut] + text[:20] + row[cut:])


def test_most_rules_are_left_out():
    assert len(EVERY_RULE.at("hello world", 0)) < len(_ORDER) / 10


@pytest.mark.parametrize(
    ("pattern", "first", "following", "can"),
    [
        ("[A-Z][a-z]+", "M", " ", True),
        ("[A-Z][a-z]+", "m", " ", False),
        ("(?i:mon)", "M", "", True),
        ("(?i:mon)-", "m", "-", True),
        ("(?i:mon)-", "m", ".", False),
        (r"\d{1,3}(?=年)", "5", "年", True),
        (r"\d{1,3}(?=年)", "5", "月", False),
        (r"\d{1,3}(?=年)", "5", "", False),
        (r"\d+(?!年)", "5", "年", True),
        (r"(?<=x)\d+$", "5", "", True),
        (r"\d\s?(?:kg|mg)", "5", "k", True),
        (r"\d\s?(?:kg|mg)", "5", "g", False),
        (r"[^\d]+5", "-", "5", True),
        (r"[^\d]+5", "4", "5", False),
        (r"--x", "-", "-", True),
        (r"--x", "+", "-", False),
        (r"(?P<a>\d)-(?P=a)", "5", "-", True),
        (r".x", "-", "x", True),
        (r"[\s\S]{0,9}?x", "-", "y", True),
        (r"[^一-九a]", "é", "", True),
        (r"[^一-九a]", "a", "", False),
        (r"[^年]", "月", "", True),
        (r"[一-九]", "中", "", True),
        (r"\d{2}月", "1", "年", False),
    ],
)
def test_what_a_pattern_needs(pattern, first, following, can):
    assert may_match(re.compile(pattern, re.ASCII), first, following) is can


@given(
    st.text("ab1-. ", min_size=1, max_size=8), st.sampled_from([r"a+-?", r"(?:a|1)\.b", r"1{1,3}(?=-)", r"[ab]\s\d", r"-(?!b)"])
)
def test_it_agrees_with_matching(text, pattern):
    run = re.match(r"[a-z]+|\d+|.", text)
    if re.compile(pattern, re.ASCII).match(text):
        assert may_match(re.compile(pattern, re.ASCII), text[0], text[run.end() : run.end() + 1])
