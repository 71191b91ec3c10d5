"""Where native code runs, a CPU is served without torch: here it cannot even be imported.

What each process of the service imports, and what it does: text to codes and audio, with the vocoder beside the engine
and apart.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine import needs_native

ROOT = Path(__file__).resolve().parents[2]
NO_TORCH = """
import sys

NAMES = ("torch", "torchaudio", "ChatTTS", "vector_quantize_pytorch", "transformers", "vocos", "triton")

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in NAMES:
            raise ModuleNotFoundError(f"{name} is imported", name=name)

sys.meta_path.insert(0, Blocked())
"""
SPEAK = """
import asyncio
from contextlib import aclosing

import numpy as np

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.engine.fingerprint import engine_fingerprint
from pipeline.errors import ConfigError, InvalidRequest, ReferenceRejected
from pipeline.paths import cache_home
from pipeline.timing.following import Following
from pipeline.types import Head, Prompt, SamplingParams, SeedMode, Segment, SynthesisRequest
from pipeline.vocoder.beside import chunks_of, with_samples
from pipeline.vocoder.encode_apart import encode_apart
from pipeline.vocoder.fingerprint import vocoder_fingerprint
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import Vocoder
from serve.commands.say import open_pipeline

checkpoint = open_checkpoint(resolve("demo", cache_home()))


async def speak(config):
    async with open_pipeline(config) as local:
        def request(mode):
            sampling = SamplingParams(seed=1, seed_mode=mode)
            return SynthesisRequest("r", "Five one one.", "default", sampling=sampling, timeout_s=250)

        samples = np.concatenate([chunk.samples async for chunk in local.synthesizer.stream(request(SeedMode.COUNTER))])
        try:
            async for _ in local.synthesizer.stream(request(SeedMode.UPSTREAM)):
                raise AssertionError("spoken")
        except InvalidRequest as error:
            assert error.param == "seed_mode" and "allowed here is counter" in error.message, error
        return samples


async def beside(config):
    ids = np.full((16, 4), 7, np.int64)
    prompt = Prompt(ids, np.ones(16, np.bool_), Head.CODE, Segment("", 0, is_last=True), max_steps=80)
    engine, vocoder = Engine(config.engine, checkpoint), Vocoder(config.vocoder, checkpoint)
    steps = engine.generate(prompt, SamplingParams(seed=1, min_steps=80), timeout_s=250)
    codes, samples = [], []
    async with aclosing(with_samples(steps, StreamDecoder(vocoder))) as blocks:
        async for block in blocks:
            codes.append(block.codes)
            samples.append(block.samples)
    codes = np.concatenate(codes)
    followed = await Following(checkpoint, positions=512).follow(prompt, codes, (2, 14), ended=True)
    assert len(followed.path) == len(codes)
    engine.close()
    vocoder.close()
    return codes, np.concatenate(samples)


def refused(kind, call):
    try:
        call()
    except kind as error:
        assert "pip install 'chattts-serve[torch]'" in str(error), error
    else:
        raise AssertionError(f"{kind} expected")


for engine, vocoder in (({}, {}), ({"dtype": "bfloat16", "weights": "int8", "kv": "int8"}, {"use_decoder": False})):
    settings = {"checkpoint": "demo", "engine": {"threads": 1, "slots": 2, **engine}, "vocoder": {"threads": 1, **vocoder}}
    config = PipelineConfig.model_validate(settings)
    samples = asyncio.run(speak(config))
    assert len(samples) > 12_000 and np.abs(samples).max() > 0.01, "a sentence was spoken"
    codes, samples = asyncio.run(beside(config))
    assert codes.shape == (80, 4) and len(samples) == 512 * 80 - 256
    engine_fingerprint(config.engine, checkpoint), vocoder_fingerprint(config.vocoder, checkpoint)
refused(ConfigError, lambda: Engine(EngineConfig(decode="torch"), checkpoint))
refused(ConfigError, lambda: Vocoder(VocoderConfig(method="windows"), checkpoint))
refused(ReferenceRejected, lambda: asyncio.run(encode_apart(checkpoint.root, np.zeros(24_000, np.float32))))
"""


def run_without_torch(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NO_TORCH + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        "serve.deployments.ingress, pipeline.synthesizer",
        "serve.deployments.text_normalizer, pipeline.text.isolation.worker",
        "serve.deployments.acoustic_model, serve.deployments.vocoder_beside",
        "serve.deployments.vocoder",
        "serve.app, serve.config.config_file, serve.protocols.proxy_middleware",
        "serve.commands.launch.start, serve.commands.app",
    ],
)
def test_no_process_of_the_service_imports_torch(modules):
    run_without_torch(f"import {modules}")


@needs_native
@pytest.mark.slow
def test_a_sentence_is_spoken_and_what_needs_torch_is_refused_with_what_to_do():
    run_without_torch(SPEAK)


def test_the_block_blocks():
    with pytest.raises(AssertionError, match="torch is imported"):
        run_without_torch("import torch")
