"""Subtitles: every cue lasts, whatever the model swallowed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.speech.subtitles import Cue, lasting, written

TIMES = st.lists(st.sampled_from([0.0, 0.0, 0.0004, 0.5, 3.0]), min_size=1, max_size=12)


@given(TIMES, st.floats(0, 5000))
def test_every_cue_lasts_and_none_overlaps(lengths, begin):
    shown, start = [], begin
    for number, length in enumerate(lengths):
        shown.append(Cue(start, start + length, f"cue {number}"))
        start += length
    found = lasting(shown)
    assert [cue.text for cue in found] == [cue.text for cue in shown]
    for cue in found:
        stamps = written([cue], "vtt").splitlines()[2].split(" --> ")
        assert stamps[0] < stamps[1], "in the file's own milliseconds"
    assert all(before.end <= after.start + 1e-6 for before, after in pairwise(found))
    if any(length >= 0.5 for length in lengths):
        assert found[0].start == begin
        assert found[-1].end == pytest.approx(start, abs=1e-6)


def test_cues_that_last_keep_their_times():
    shown = [Cue(0.0, 0.1 + 0.2, "a"), Cue(0.7, 1.1, "b")]
    assert lasting(shown) == shown
