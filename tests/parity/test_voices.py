"""Seed voices and strings against torch and the ChatTTS package: bit for bit."""

import asyncio
from functools import cache
from pathlib import Path

import numpy as np
import pybase16384
import pyloudnorm
import pytest
import silero_vad
import torch
from ChatTTS.config.config import Config
from ChatTTS.model.speaker import Speaker
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from vector_quantize_pytorch import GroupedResidualFSQ

import pipeline.voices
from pipeline.audio.loudness import integrated_loudness
from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.types import MAX_SEED
from pipeline.vocoder.encode_apart import encode_apart
from pipeline.vocoder.reference_encoder import MIN_SAMPLES, ReferenceEncoder
from pipeline.voices import vad
from pipeline.voices.seeds import draw_embedding, standard_normal
from pipeline.voices.strings import decode_embedding, decode_sample, encode_embedding, encode_sample
from pipeline.voices.vad import FRAME, VAD_RATE, speech_probabilities
from scripts.bench.upstream import load_chat
from scripts.train_demo.codes import quantise
from tests.support.effort import examples
from tests.support.sounds import RATE, speech

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


# The encoder of reference recordings against the ChatTTS package: codes exactly.


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


# The VAD against silero-vad's own network. The wheel's TorchScript file holds other weights than its safetensors file, which


PLACES = {"lstm_cell": "decoder.rnn", "final_conv": "decoder.decoder.2"} | {
    f"conv{number}": f"encoder.{number - 1}.reparam_conv" for number in range(1, 5)
}


def network():
    model = silero_vad.load_silero_vad()
    parameters = dict(model.named_parameters())
    basis = dict(model.named_buffers())["_model.stft.forward_basis_buffer"]
    with torch.no_grad():
        for name, values in vad._weights().items():
            layer, _, kind = name.partition(".")
            place = basis if layer == "stft_conv" else parameters[f"_model.{PLACES[layer]}.{kind}"]
            place.copy_(torch.from_numpy(values))
    return model


def test_the_weights_are_those_of_the_package():
    assert vad.WEIGHTS.read_bytes() == (Path(silero_vad.__file__).parent / "data" / vad.WEIGHTS.name).read_bytes()


@pytest.mark.parametrize("samples", [1, 511, 512, 513, 16_000, 100_001])
def test_probabilities_are_silero_vads(samples):
    random = np.random.default_rng(samples)
    at = np.arange(samples) / VAD_RATE
    sound = sum(np.sin(2 * np.pi * k * (140 + 20 * np.sin(3 * at)) * at) / k for k in range(1, 12))
    sound = (0.1 * sound * (np.sin(7 * at) > 0) + 0.01 * random.standard_normal(samples)).astype(np.float32)
    padded = np.pad(sound, (0, -samples % FRAME))
    expected = network().audio_forward(torch.from_numpy(padded)[None], VAD_RATE).numpy()[0]
    assert np.abs(speech_probabilities(sound) - expected).max() < 1e-4


# Loudness: the same as pyloudnorm measures, within what its filter costs.


@pytest.mark.parametrize("rate", [16_000, 24_000, 48_000])
@pytest.mark.parametrize("blocks", [1, 2, 7, 40])
def test_pyloudnorm_measures_the_same(rate, blocks):
    """pyloudnorm's filter has other coefficients, which cost it up to 0.13 LU, and it gates a last block that is not whole."""
    tones = speech(RATE * 8)[: round(0.1 * rate) * (blocks + 3)]
    assert integrated_loudness(tones, rate) == pytest.approx(
        pyloudnorm.Meter(rate).integrated_loudness(tones.astype(float)), abs=0.2
    )


# The codes the demo voice is trained on: those of the quantiser that ChatTTS uses.


@given(st.integers(0, 2**31))
def test_codes_are_the_quantisers(seed):
    numbers = torch.randn(1, 40, 8, generator=torch.Generator().manual_seed(seed))
    quantiser = GroupedResidualFSQ(dim=8, levels=[5] * 4, num_quantizers=2, groups=2)
    indices = quantiser(numbers)[1].permute(1, 2, 0, 3).flatten(2)
    assert torch.equal(quantise(numbers), indices)
