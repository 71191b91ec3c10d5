"""chattts-serve pack: smaller files, from which the engine rounds the bytes that it rounds from the larger ones."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from pipeline.bfloat16 import rounded, widened
from pipeline.checkpoint.layout import EMBED_FILE, GPT_FILE, MANIFEST_FILE, SMALL_FILES, VOCOS_FILE
from pipeline.checkpoint.manifest import verify_files
from pipeline.checkpoint.packed_tensors import widen_int4, widen_int8
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.errors import CheckpointError
from pipeline.model.cpu import four_bit, native
from pipeline.model.cpu.quantise_numpy import quantise
from pipeline.model.cpu.vocabulary import Heads, Vocabulary, folded_heads
from pipeline.native.compiler import library
from serve.commands.weights.pack_checkpoint import main, pack
from tests.support.effort import examples
from tests.support.machine import needs_native
from tests.support.small_vocoder import with_small_vocoder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, demo_root: Path) -> Checkpoint:
    return open_checkpoint(with_small_vocoder(demo_root, tmp_path_factory.mktemp("source") / "small"))


def matrix(seed: int, rows: int) -> np.ndarray:
    """Returns (rows, 64) float32, some rows of one number, of zeros, or of very different sizes."""
    random = np.random.default_rng(seed)
    wide = random.standard_t(3, (rows, 64)) * np.exp(4 * random.standard_normal((rows, 1)))
    wide[random.random(rows) < 0.1] *= random.random(64) < 0.03
    return wide.astype(np.float32)


def in_four_bits(weight: np.ndarray) -> four_bit.FourBits:
    return four_bit.rounded(np.ascontiguousarray(weight), library(native.SOURCE), threads=1)


@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_rounding_to_eight_bits_again_changes_nothing(seed: int, rows: int) -> None:
    numbers, scales = quantise(matrix(seed, rows))
    again, scales_again = quantise(widen_int8(numbers, scales))
    assert np.array_equal(scales_again, scales)
    assert np.array_equal(again, numbers)


@needs_native
@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_rounding_to_four_bits_again_changes_nothing(seed: int, rows: int) -> None:
    codes, scales = in_four_bits(matrix(seed, rows))
    again, scales_again = in_four_bits(widen_int4(codes[:, ::2] | codes[:, 1::2] << 4, widened(scales)))
    assert np.array_equal(scales_again, scales)
    assert np.array_equal(again, codes)


@needs_native
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_the_engine_rounds_the_same_bytes_from_the_smaller_files(source: Checkpoint, tmp_path: Path, weights: str) -> None:
    pack(source.root, tmp_path / "out", weights, "small")
    small, rounding = open_checkpoint(tmp_path / "out"), {"bf16": rounded, "int8": quantise, "int4": in_four_bits}[weights]
    whole, packed = source.gpt(), small.gpt()
    for name, tensor in whole.items():
        both = (tensor, packed[name]) if "_proj" not in name else (rounding(tensor), rounding(packed[name]))
        assert all(np.array_equal(one, other) for one, other in zip(*both, strict=True)), name
    ours, theirs = Vocabulary(small.embed()), Vocabulary(source.embed())
    assert np.array_equal(ours.text_table, theirs.text_table)
    assert np.array_equal(ours.code_table, theirs.code_table)
    smaller, larger = folded_heads(small.embed()), folded_heads(source.embed())
    for head, *both in zip(Heads._fields, smaller, larger, strict=True):
        both = list(map(quantise, both)) if weights == "int4" else [(one,) for one in both]
        assert all(np.array_equal(one, other) for one, other in zip(*both, strict=True)), head
    assert set(SMALL_FILES) < set(verify_files(small.root)), "whole without the full vocoder"
    assert not (small.root / VOCOS_FILE).exists()
    assert (small.root / GPT_FILE).stat().st_size < {"bf16": 0.52, "int8": 0.28, "int4": 0.18}[weights] * (
        source.root / GPT_FILE
    ).stat().st_size
    pack(small.root, tmp_path / "again", weights, "small")
    assert (tmp_path / "again" / MANIFEST_FILE).read_text() == (small.root / MANIFEST_FILE).read_text()


def test_equal_rows_are_stored_once(source: Checkpoint, tmp_path: Path) -> None:
    root = shutil.copytree(source.root, tmp_path / "twins")
    tensors = load_file(root / EMBED_FILE)
    table = tensors["emb_text.weight"]
    save_file(tensors | {"emb_text.weight": table[np.arange(len(table)) // 9]}, root / EMBED_FILE)
    pack(root, tmp_path / "out", "int8", "full")
    packed = open_checkpoint(tmp_path / "out")
    assert np.array_equal(packed.embed()["emb_text.weight"], open_checkpoint(root).embed()["emb_text.weight"])
    assert (packed.root / EMBED_FILE).stat().st_size < 0.8 * (root / EMBED_FILE).stat().st_size
    assert not (packed.root / SMALL_FILES[0]).exists()


@pytest.mark.parametrize("lost", ["scale", "half"])
def test_a_packed_tensor_without_its_scales_is_damaged(source: Checkpoint, tmp_path: Path, lost: str) -> None:
    pack(source.root, tmp_path / "out", "int8", "small")
    (tmp_path / "out" / MANIFEST_FILE).unlink()
    tensors = load_file(tmp_path / "out" / GPT_FILE)
    name = "layers.0.mlp.up_proj.weight.scale"
    changed = {name: tensors[name][::2].copy()} if lost == "half" else {}
    save_file({key: value for key, value in tensors.items() if key != name} | changed, tmp_path / "out" / GPT_FILE)
    with pytest.raises(CheckpointError, match="damaged"):
        open_checkpoint(tmp_path / "out").gpt()


def test_what_cannot_be_packed_is_refused(demo_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert main([str(demo_root), str(tmp_path / "full")]) == 2
    assert main([str(demo_root), str(tmp_path / "out"), "--vocoder", "small"]) == 1
    assert "set pipeline.vocoder.size to full" in capsys.readouterr().err
    assert main([str(demo_root), str(tmp_path / "out"), "--weights", "int8"]) == 0
