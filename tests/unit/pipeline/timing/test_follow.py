"""Follow: the path through the text, the heads of attention it is read from, and what of the words was swallowed."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint.capabilities import Alignment, Capabilities, capabilities_file, read_capabilities
from pipeline.checkpoint.layout import CAPABILITIES_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.manifest import file_sha256, read_manifest, write_manifest
from pipeline.takes.coverage import coverage_of
from pipeline.timing.follow import LAG, Follower
from pipeline.types import Coverage, Followed, Head, Prompt, Segment, SpokenWord
from scripts.train_demo.network import GUIDED_LAYERS


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


# The heads of attention that a checkpoint lists, and what the script that finds them makes of heads that do not follow.


@pytest.fixture(scope="module")
def heads() -> ModuleType:
    return pytest.importorskip("scripts.evaluate.alignment_heads", reason="needs pocketsphinx")


def test_the_demo_voice_lists_the_heads_that_its_training_guided():
    alignment = read_capabilities(DEMO_FOLDER).alignment
    assert alignment is not None
    assert (GUIDED_LAYERS[-1], 0) in alignment.heads
    assert alignment.median_ms is None or alignment.median_ms <= 40
    assert alignment.within_100_ms is None or alignment.within_100_ms >= 0.95


def test_the_script_writes_the_list_and_its_hash(heads: ModuleType, tmp_path: Path):
    path = tmp_path / CAPABILITIES_FILE
    path.parent.mkdir()
    path.write_bytes(capabilities_file(Capabilities(languages=("en",))))
    write_manifest(tmp_path, {CAPABILITIES_FILE: file_sha256(path)})
    alignment = Alignment(heads=((3, 1),), words=9, median_ms=12.5, within_100_ms=0.95)
    heads.write(str(tmp_path), alignment)
    assert read_capabilities(tmp_path) == Capabilities(languages=("en",), alignment=alignment)
    assert read_manifest(tmp_path) == {CAPABILITIES_FILE: file_sha256(path)}


STEPS_OF_A_WORD = 6


def spoken(heads: ModuleType, words: int, *, follows: tuple[int, ...], of: int) -> object:
    """A sentence of one-token words of equal length, at which some of the heads look in turn, and the others nowhere."""
    steps = words * STEPS_OF_A_WORD
    ids = np.zeros((words + 1, 4), np.int64)
    prompt = Prompt(ids, np.ones(words + 1, bool), Head.CODE, Segment("x", 0, is_last=True), max_steps=steps)
    scores = np.random.default_rng(words).normal(0, 1, (of, steps, words + 1)).astype(np.float32)
    for head in follows:
        scores[head, np.arange(steps), np.arange(steps) // STEPS_OF_A_WORD] += 20
    items = tuple(SpokenWord((at, at + 1), (at, at + 1), (at, at + 1)) for at in range(words))
    starts_s = [at * STEPS_OF_A_WORD * 512 / 24_000 for at in range(words)]
    return heads.Spoken([(prompt, items, np.zeros((steps, 4), np.int64))], [scores], starts_s)


def test_the_head_that_follows_is_found_and_noise_is_not_added(heads: ModuleType):
    sentences = [spoken(heads, words, follows=(2,), of=4) for words in (7, 9, 11)]
    assert heads.chosen_of(sentences, 4) == [2]
    assert heads.median(heads.errors_ms(sentences, [2])) == 0


def test_no_head_is_chosen_where_none_follows(heads: ModuleType):
    assert heads.chosen_of([spoken(heads, words, follows=(), of=4) for words in (30, 40)], 4) == []
