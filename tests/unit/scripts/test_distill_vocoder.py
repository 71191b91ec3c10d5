"""The small vocoder: what it begins with, and a training that goes on where it was stopped."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.layout import SMALL_FILES, VOCOS_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.manifest import file_sha256, read_manifest
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import VocoderConfig
from pipeline.vocoder.windowed.network import build_network
from scripts import distill_vocoder
from scripts.distill_vocoder import AROUND, Small, begun
from tests.support.reference_vocoder import decode_whole

ROOT = Path(__file__).resolve().parents[3]


def test_it_begins_as_a_part_of_its_teacher_and_has_at_most_a_million_parameters():
    checkpoint = open_checkpoint(DEMO_FOLDER)
    teacher = in_torch(checkpoint.mel_decoder()), in_torch(checkpoint.vocos())
    small = Small(*begun(*teacher), "cpu")
    assert sum(tensor.numel() for tensor in small.learned) <= 1_000_000
    assert sum(tensor.numel() for part in small.files().values() for tensor in part.values()) * 2 < 2_000_000
    for mine, whole in zip(small.parts, teacher, strict=True):
        assert mine.keys() <= whole.keys()
        for name in {"backbone.embed.weight", "decoder.conv_in.0.weight"} & mine.keys():
            is_row = (mine[name].flatten(1)[:, None] == whole[name].flatten(1)).all(-1).any(1)
            assert is_row.all()


def test_with_room_for_all_of_it_the_small_one_is_its_teacher(monkeypatch):
    for name in ("BOTTLENECK", "OUTPUTS", "WIDTH", "LAYERS", "DECODER_MLP", "VOCOS_MLP"):
        monkeypatch.setattr(distill_vocoder, name, 10_000)
    checkpoint = open_checkpoint(DEMO_FOLDER)
    small = Small(*begun(in_torch(checkpoint.mel_decoder()), in_torch(checkpoint.vocos())), "cpu")
    rows = np.random.default_rng(1).standard_normal((40 + 2 * AROUND, 256), np.float32)
    with torch.no_grad():
        _, samples = small(torch.from_numpy(rows)[None])
    expected = decode_whole(build_network(VocoderConfig(), checkpoint), rows)[512 * AROUND : -512 * AROUND + 256]
    assert np.allclose(samples[0], expected, atol=1e-5)


@pytest.mark.slow
def test_the_training_writes_a_checkpoint_and_resumes(tmp_path):
    command = [sys.executable, "-m", "scripts.distill_vocoder", "demo", str(tmp_path), "--sentences", "24", "--rows", "2"]
    losses = []
    for seconds in ("6", "16"):
        completed = subprocess.run([*command, "--seconds", seconds], cwd=ROOT, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stderr
        lines = (tmp_path / "distillation/small.jsonl").read_text().splitlines()
        losses.append([float(line.split('"own": ')[-1].rstrip("}")) for line in lines])
    assert losses[1][: len(losses[0])] == losses[0]
    assert losses[1][-1] < losses[0][0], "it learns"
    checkpoint, manifest = open_checkpoint(tmp_path), read_manifest(tmp_path)
    assert manifest[VOCOS_FILE] == read_manifest(DEMO_FOLDER)[VOCOS_FILE]
    assert all(manifest[file] == file_sha256(tmp_path / file) for file in SMALL_FILES)
    assert np.isfinite(
        decode_whole(build_network(VocoderConfig(size="small"), checkpoint), np.zeros((20, 256), np.float32))
    ).all()
