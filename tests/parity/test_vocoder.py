"""The vocoder against the ChatTTS package, which decodes the whole utterance at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.config import VocoderConfig
from pipeline.paths import cache_home
from pipeline.spec import HOP
from pipeline.types import FinishReason, StepBlock
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.windowed.network import CodeEmbedding, build_network
from scripts.bench.upstream import load_chat
from tests.support.effort import examples
from tests.support.machine import needs_native
from tests.support.reference_vocoder import decode_whole

LENGTHS = (1, 2, 3, 7, 51, 52, 53, 60, 104, 105, 150, 300)
TOLERANCE = 1e-4
CARRY_TOLERANCE = 5e-5


@cache
def checkpoint(kind: str) -> Checkpoint:
    return open_checkpoint(resolve(kind, cache_home()))


@cache
def upstream(kind: str):
    """The package on a made checkpoint."""
    return load_chat(checkpoint(kind).root)


@cache
def vocoder(kind: str, **options: object) -> Vocoder:
    """Kept until the process ends: its thread is a daemon."""
    return Vocoder(config(**options), checkpoint(kind))


def config(*, method: str = "windows", **options: object) -> VocoderConfig:
    return VocoderConfig.varied(dict(threads=1, method=method, **options))


def make_rows(kind: str, length: int, *, use_decoder: bool) -> np.ndarray:
    random = np.random.default_rng(length)
    if use_decoder:
        return random.standard_normal((length, checkpoint(kind).gpt_spec.width), np.float32)
    return random.integers(0, 625, (length, 4))


async def make_steps(rows: np.ndarray, arrivals: list[int]) -> AsyncIterator[StepBlock]:
    first = index = 0
    while first < len(rows):
        block = rows[first : first + arrivals[index % len(arrivals)]]
        ended = first + len(block) == len(rows)
        yield StepBlock(block.astype(np.float32), block.astype(np.int64), first, FinishReason.EOS if ended else None)
        first, index = first + len(block), index + 1


def stream(kind: str, utterance: np.ndarray, arrivals: list[int], **options: object) -> np.ndarray:
    async def collect() -> np.ndarray:
        decoder = StreamDecoder(vocoder(kind, **options))
        async with aclosing(decoder.decode(make_steps(utterance, arrivals))) as chunks:
            return np.concatenate([chunk.samples async for chunk in chunks])

    return asyncio.run(collect())


@pytest.mark.parametrize("method", [pytest.param("incremental", marks=needs_native), "windows"])
@pytest.mark.parametrize(("kind", "use_decoder"), [
    ("small-random", True), ("small-random", False), ("full-random", True),
    pytest.param("full-random", False, marks=pytest.mark.nightly),
])  # fmt: skip
def test_every_length_equals_upstream_decoding_the_whole(kind, use_decoder, method):
    for length in LENGTHS:
        rows = make_rows(kind, length, use_decoder=use_decoder)
        whole = upstream(kind)._decode_to_wavs([torch.from_numpy(rows)], use_decoder)[0]
        ours = stream(kind, rows, [4], use_decoder=use_decoder, method=method)
        assert ours.shape == whole.shape == ((2 * length - 1) * HOP,)
        error = np.abs(ours - whole).max()
        print(f"{kind} {method} use_decoder={use_decoder} n={length}: max error {error:.1e}, peak {np.abs(whole).max():.2f}")
        assert error <= (CARRY_TOLERANCE if method == "incremental" else TOLERANCE)
        assert np.abs(whole).max() > 100 * TOLERANCE


@pytest.mark.parametrize("method", [pytest.param("incremental", marks=needs_native), "windows"])
@settings(max_examples=examples(25))
@given(st.integers(1, 200), st.lists(st.integers(1, 120), min_size=1, max_size=8), st.booleans(), st.sampled_from([1, 4]))
def test_streamed_equals_buffered_bit_for_bit(method, length, arrivals, use_decoder, batch):
    rows = make_rows("small-random", length, use_decoder=use_decoder)
    streamed = stream("small-random", rows, arrivals, use_decoder=use_decoder, rows=batch, method=method)
    buffered = stream("small-random", rows, [length], use_decoder=use_decoder, rows=batch, method=method)
    assert np.array_equal(streamed.view(np.uint32), buffered.view(np.uint32))


def test_full_look_ahead_is_exact_and_a_short_one_is_not():
    rows = make_rows("full-random", 260, use_decoder=True)
    whole = decode_whole(build_network(config(), checkpoint("full-random")), rows)
    errors = {
        look_ahead: np.abs(stream("full-random", rows, [7], look_ahead=look_ahead) - whole).max() for look_ahead in (8, 52)
    }
    print(f"max error by look_ahead: {errors}")
    assert errors[52] <= 5e-6, "all that is left is the rounding of another matrix shape"
    assert errors[8] > 1000 * errors[52]


def test_code_embedding_equals_the_quantiser():
    codes = torch.from_numpy(make_rows("small-random", 625, use_decoder=False))[None]
    codes[0, :, 0] = torch.arange(625)
    chat = upstream("small-random")
    tensors = in_torch(checkpoint("small-random").dvae())
    expected = chat.dvae.vq_layer._embed(codes.transpose(1, 2)).transpose(1, 2)
    ours = CodeEmbedding(tensors)(codes.float())
    assert torch.allclose(ours, expected, atol=1e-6)
