"""Follow: the path through the text never goes back, and nothing but the scores decides it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.takes.coverage import coverage_of
from pipeline.timing.follow import LAG, Follower
from pipeline.types import Coverage, Followed, SpokenWord


def scores_of(looked: list[int], tokens: int) -> np.ndarray:
    """Scores (1, n, tokens) of steps that look at one token each."""
    scores = np.zeros((1, len(looked), tokens), np.float32)
    scores[0, np.arange(len(looked)), looked] = 8.0
    return scores


def path_of(scores: np.ndarray, cuts: tuple[int, ...] = ()) -> list[int]:
    follower = Follower(scores.shape[2])
    for start, stop in zip((0, *cuts), (*cuts, scores.shape[1]), strict=True):
        follower.add(scores[:, start:stop])
    follower.finish()
    return follower.path


def test_clear_steps_are_at_the_token_they_look_at():
    looked = [0, 0, 0, 1, 1, 2, 3, 3, 3, 4, 4]
    assert path_of(scores_of(looked, 5)) == looked


def test_a_slip_of_the_eye_is_no_word():
    assert path_of(scores_of([0, 0, 3, 0, 0, 1, 1, 0, 1, 2, 2, 3, 3], 4)) == [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]


def test_swallowed_tokens_are_skipped():
    assert path_of(scores_of([0, 0, 0, 4, 4, 4, 5], 6)) == [0, 0, 0, 4, 4, 4, 5]


@given(st.data())
def test_the_path_never_goes_back_and_does_not_depend_on_the_groups(data):
    tokens, steps = data.draw(st.integers(1, 9)), data.draw(st.integers(2, 60))
    scores = np.random.default_rng(data.draw(st.integers(0, 2**32))).normal(0, 3, (2, steps, tokens)).astype(np.float32)
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, steps - 1), max_size=6))))
    whole = path_of(scores)
    assert len(whole) == steps
    assert whole == sorted(whole)
    assert whole == path_of(scores, cuts)


def test_a_step_is_decided_when_so_many_later_ones_are_known():
    follower = Follower(3)
    follower.add(scores_of([0] * LAG, 3))
    assert follower.path == []
    follower.add(scores_of([0], 3))
    assert follower.path == [0]


WORDS = tuple(SpokenWord((at, at + 1), (at, at + 1), (10 + 2 * at, 12 + 2 * at)) for at in range(4))


def coverage(*looked: int) -> Coverage:
    return coverage_of(WORDS, Followed(np.zeros(0, np.int64), np.array(looked)))


def test_a_word_that_no_step_looks_at_was_swallowed():
    assert coverage(*[10] * 4, *[12] * 4, *[17] * 4) == Coverage(4, swallowed=1)
    assert coverage(*[10] * 4, *[12] * 4, *[15] * 4, *[17] * 4).share == 1.0
    assert coverage() == Coverage(4, swallowed=4)


def test_a_word_that_is_said_again_was_repeated():
    assert coverage(*[10] * 4, *[12] * 4, *[14] * 4, *[12] * 4, *[14] * 4, *[16] * 4) == Coverage(4, repeated=1)
    assert coverage(*[10] * 4, *[12] * 4, *[14] * 4, 12, *[14] * 4, *[16] * 4) == Coverage(4), "a slip is none"
    assert coverage(*[10] * 4, *[12] * 4, *[14] * 4, *[16] * 4, *[30] * 9) == Coverage(4), "the end of the text is no word"


def test_coverage_adds_up():
    assert (Coverage(4, 1) + Coverage(6, 0, 2)).share == 0.7
    assert Coverage().share == 1.0
