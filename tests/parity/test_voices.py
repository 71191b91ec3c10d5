"""Seed voices and strings against torch and the ChatTTS package: bit for bit."""

from pathlib import Path

import numpy as np
import pybase16384
import pytest
import torch
from ChatTTS.config.config import Config
from ChatTTS.model.speaker import Speaker
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pipeline.voices
from pipeline.types import MAX_SEED
from pipeline.voices.seeds import draw_embedding, standard_normal
from pipeline.voices.strings import decode_embedding, decode_sample, encode_embedding, encode_sample
from tests.support.effort import examples

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


@given(st.integers(0, MAX_SEED), st.sampled_from([16, 256, 768]))
@settings(max_examples=examples(60))
def test_speaker_strings_are_written_as_upstream_writes_them(seed, width):
    embedding = draw_embedding(seed, width)
    string = encode_embedding(embedding)
    assert string == Speaker._encode(torch.from_numpy(embedding))
    assert np.array_equal(bits(Speaker._decode(string)), bits(embedding))
    assert np.array_equal(bits(decode_embedding(string, width)), bits(embedding))


@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 700), st.just(4)), elements=st.integers(0, 625)))
@settings(max_examples=examples(40))
def test_prompt_strings_are_written_as_upstream_writes_them(codes):
    string = encode_sample(codes)
    assert string == Speaker.encode_prompt(torch.from_numpy(codes.T.copy()))
    assert np.array_equal(Speaker.decode_prompt(string).numpy(), codes.T)
    assert np.array_equal(decode_sample(string), codes)
