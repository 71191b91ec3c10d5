"""The heads of attention that a checkpoint lists, and what the script that finds them makes of heads that do not follow."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.checkpoint.capabilities import Alignment, Capabilities, capabilities_file, read_capabilities
from pipeline.checkpoint.layout import CAPABILITIES_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.manifest import file_sha256, read_manifest, write_manifest
from pipeline.errors import CheckpointError
from pipeline.types import Head, Prompt, Segment, SpokenWord
from scripts.train_demo.network import GUIDED_LAYERS

heads = pytest.importorskip("scripts.evaluate.alignment_heads", reason="needs pocketsphinx")


def test_the_demo_voice_lists_the_heads_that_its_training_guided():
    alignment = read_capabilities(DEMO_FOLDER).alignment
    assert alignment is not None
    assert set(alignment.heads) <= {(layer, 0) for layer in GUIDED_LAYERS}
    assert alignment.median_ms is None or alignment.median_ms <= 40
    assert alignment.within_100_ms is None or alignment.within_100_ms >= 0.85


def test_a_checkpoint_without_a_list_has_none_and_a_wrong_list_is_refused(tmp_path: Path):
    path = tmp_path / CAPABILITIES_FILE
    path.parent.mkdir()
    path.write_bytes(capabilities_file(Capabilities()))
    assert read_capabilities(tmp_path).alignment is None
    path.write_text(json.dumps({"alignment": {"heads": []}}))
    with pytest.raises(CheckpointError, match=r"alignment\.heads"):
        read_capabilities(tmp_path)


def test_the_script_writes_the_list_and_its_hash(tmp_path: Path):
    path = tmp_path / CAPABILITIES_FILE
    path.parent.mkdir()
    path.write_bytes(capabilities_file(Capabilities(languages=("en",))))
    write_manifest(tmp_path, {CAPABILITIES_FILE: file_sha256(path)})
    alignment = Alignment(heads=((3, 1),), words=9, median_ms=12.5, within_100_ms=0.95)
    heads.write(str(tmp_path), alignment)
    assert read_capabilities(tmp_path) == Capabilities(languages=("en",), alignment=alignment)
    assert read_manifest(tmp_path) == {CAPABILITIES_FILE: file_sha256(path)}


STEPS_OF_A_WORD = 6


def spoken(words: int, *, follows: tuple[int, ...], of: int) -> "heads.Spoken":
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


def test_the_head_that_follows_is_found_and_noise_is_not_added():
    sentences = [spoken(words, follows=(2,), of=4) for words in (7, 9, 11)]
    assert heads.chosen_of(sentences, 4) == [2]
    assert heads.median(heads.errors_ms(sentences, [2])) == 0


def test_no_head_is_chosen_where_none_follows():
    assert heads.chosen_of([spoken(words, follows=(), of=4) for words in (30, 40)], 4) == []
