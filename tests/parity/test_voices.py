"""Seed voices and strings against torch and the ChatTTS package: bit for bit."""

from pathlib import Path

import numpy as np
import pybase16384
import pytest
import torch
from ChatTTS.config.config import Config
from ChatTTS.model.speaker import Speaker

import pipeline.voices
from pipeline.voices import MAX_SEED, decode_embedding, decode_sample, draw_embedding, standard_normal

STATISTICS = Path(pipeline.voices.__file__).with_name("speaker_stat.npy")
SEEDS = [*range(200), 2222, 2**16, 2**31 - 1, 2**31, MAX_SEED - 1, MAX_SEED]


def bits(values):
    return values.view(np.uint16)


@pytest.mark.parametrize("count", [16, 17, 31, 64, 100, 128, 256, 512, 768, 1000, 1024])
def test_draws_are_torchs(count):
    with torch.random.fork_rng():
        for seed in SEEDS:
            torch.manual_seed(seed)
            expected = torch.randn(count, dtype=torch.float16).numpy()
            assert np.array_equal(bits(standard_normal(seed, count)), bits(expected)), seed


def test_seed_voices_are_upstreams():
    speaker = Speaker(768, Config().spk_stat, torch.device("cpu"))
    with torch.random.fork_rng():
        for seed in SEEDS:
            torch.manual_seed(seed)
            string = speaker.sample_random()
            expected = Speaker._decode(string)
            assert np.array_equal(bits(draw_embedding(seed, 768)), bits(expected)), seed
            assert np.array_equal(bits(decode_embedding(string, 768)), bits(expected)), seed


def test_the_statistics_file_is_upstreams():
    upstream = np.frombuffer(pybase16384.decode_from_string(Config().spk_stat), np.float16)
    assert np.array_equal(np.load(STATISTICS).reshape(-1), upstream)


@pytest.mark.parametrize("steps", [1, 2, 100, 700])
def test_samples_are_read_as_upstream_writes_them(steps):
    codes = np.random.default_rng(steps).integers(0, 626, (4, steps))
    string = Speaker.encode_prompt(torch.from_numpy(codes))
    assert np.array_equal(Speaker.decode_prompt(string).numpy(), codes)
    assert np.array_equal(decode_sample(string), codes.T)
