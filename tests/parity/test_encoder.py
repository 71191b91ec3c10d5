"""The encoder of reference recordings against the ChatTTS package: codes exactly."""

import asyncio
from functools import cache

import numpy as np
import pytest
import torch
from ChatTTS.model.speaker import Speaker

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.vocoder.encode_apart import encode_apart
from pipeline.vocoder.reference_encoder import MIN_SAMPLES, ReferenceEncoder
from scripts.bench.upstream import load_chat

KINDS = ["small-random", "full-random", "demo"]


@cache
def checkpoint(kind: str) -> Checkpoint:
    return open_checkpoint(resolve(kind, cache_home()))


@cache
def package(kind: str):
    return load_chat(checkpoint(kind).root)


def recording(seconds: float, number: int) -> np.ndarray:
    """A voice-like sound: harmonics that glide, syllables, breath, silence in between."""
    random = np.random.default_rng(number)
    at = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitch = 120 + 60 * number % 7 + 30 * np.sin(2 * np.pi * 0.7 * at)
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE
    tone = sum(np.sin(k * phase + random.uniform(0, 6)) / k for k in range(1, 20))
    syllables = np.clip(np.sin(2 * np.pi * 3 * at), 0, 1)
    return (0.1 * tone * syllables + 0.003 * random.standard_normal(len(at))).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_the_packages(kind):
    encoder = ReferenceEncoder(in_torch(checkpoint(kind).dvae()))
    for number, seconds in enumerate([3.0, 3.01, 4.999, 12.34, 30.0]):
        samples = recording(seconds, number)
        expected = Speaker.decode_prompt(package(kind).sample_audio_speaker(samples.copy())).numpy().T
        codes = encoder(samples)
        assert np.array_equal(codes, expected)
        assert abs(len(codes) - len(samples) / SAMPLES_PER_STEP) <= 1
        assert len(np.unique(codes)) > 4, "a recording that means nothing would prove nothing"


def test_every_length_to_the_sample_and_any_number_of_threads():
    encoder = ReferenceEncoder(in_torch(checkpoint("small-random").dvae()))
    threads = torch.get_num_threads()
    try:
        for samples in [*range(MIN_SAMPLES, MIN_SAMPLES + 600, 97), 5000, 5001]:
            sound = recording(samples / SAMPLE_RATE, samples)
            expected = Speaker.decode_prompt(package("small-random").sample_audio_speaker(sound.copy())).numpy().T
            for count in (1, 2):
                torch.set_num_threads(count)
                assert np.array_equal(encoder(sound), expected)
    finally:
        torch.set_num_threads(threads)


def test_a_process_of_its_own_encodes_alike():
    own = checkpoint("small-random")
    samples = np.random.default_rng(3).standard_normal(30_000).astype(np.float32) * np.float32(0.1)
    apart = asyncio.run(encode_apart(own.root, samples))
    assert np.array_equal(apart, ReferenceEncoder(in_torch(own.dvae())).encode_alone(samples))
