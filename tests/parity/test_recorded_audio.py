"""The same seed is the same audio across releases: a table of SHA-256 of what every shipped configuration says here.

A change that means to change the audio records the table anew, and says so in its message:

    python -m tests.parity.test_recorded_audio
    CHATTTS_INSTRUCTIONS=avx2 ATEN_CPU_CAPABILITY=avx2 python -m tests.parity.test_recorded_audio     # and as without AVX-512

Libraries choose their kernels by the processor, so the table has one column for each kind of processor. On another kind there
is nothing to compare with, and the test is skipped. A change of all audio deletes the columns that it cannot record itself.
"""

import asyncio
import hashlib
import json
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.config import PipelineConfig
from pipeline.errors import ConfigError
from pipeline.native.instructions import Instructions, usable
from pipeline.text.markup.ssml import parse
from pipeline.types import AudioOptions, Denoise, SamplingParams, SynthesisRequest
from serve.commands.say import open_pipeline
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file

TABLE = Path(__file__).resolve().parents[1] / "data" / "recorded_audio.json"
SSML = '<speak>Five one one. <break time="250ms"/> <prosody rate="120%">Two five five.</prosody></speak>'
LONG = "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background. " * 3
REFUSED = "refused"
SIMILAR = ("cpu", "k8s-dev", "random weights")  # each takes a path that another configuration takes too
SHIPPED = ("dev", "cpu", "k8s-dev")  # the others need a GPU
VARIANTS = {  # of dev: every other kind of numbers that runs on a CPU
    "bfloat16": {"engine": {"dtype": "bfloat16"}},
    "torch decoding": {"engine": {"decode": "torch"}},
    "windows": {"vocoder": {"method": "windows"}},
    "codes": {"vocoder": {"use_decoder": False}},
    "random weights": {"checkpoint": "small-random"},
}


def configurations() -> dict[str, PipelineConfig]:
    """Name -> pipeline; all speak with checkpoints that lie in the package or are made here."""
    dev = check_file(PROJECT / "configs/dev.yaml").app.pipeline
    shipped = {name: check_file(PROJECT / f"configs/{name}.yaml").app.pipeline for name in SHIPPED}
    configs = {name: config.model_copy(update={"checkpoint": "demo"}) for name, config in shipped.items()}
    for name, changes in VARIANTS.items():
        parts = {
            part: getattr(dev, part).model_copy(update=change) if isinstance(change, dict) else change
            for part, change in changes.items()
        }
        configs[name] = PipelineConfig.model_validate(dev.model_copy(update=parts).model_dump())
    return configs


def requests() -> dict[str, SynthesisRequest]:
    """Name -> request: voices, pace, markup, several segments, every stage behind the vocoder."""

    def request(name: str, text: str, voice: str = "default", *, seed: int = 1, **fields: object) -> SynthesisRequest:
        return SynthesisRequest(name, text, voice, sampling=SamplingParams(seed=seed), timeout_s=250, **fields)

    document = parse(SSML, control_tags=True)
    processed = AudioOptions(sample_rate=16_000, trim=True, denoise=Denoise.ON, gain_db=3.0, loudness_lufs=-18.0, fade_ms=20.0)
    return {
        "plain": request("plain", "Five one one, two five five."),
        "voice": request("voice", "Five one one, two five five.", "verse", seed=7),
        "blend": request("blend", "Five one one, two five five.", "blend:verse(0.5)+ballad(0.5)", seed=4294967295),
        "fast": request("fast", "Rice is often served in round bowls.", "nova", speed=1.3),
        "markup": request("markup", document.text, passages=document.passages, control_tags=True),
        "long": request("long", LONG, "seed:42", seed=3),
        "processed": request("processed", "A large size in stockings is hard to sell.", audio=processed),
    }


async def spoken(config: PipelineConfig) -> dict[str, str]:
    """Request -> SHA-256 of its samples, all of them asked for at once."""
    async with open_pipeline(config) as local:

        async def say(request: SynthesisRequest) -> str:
            async with aclosing(local.synthesizer.stream(request)) as stream:
                samples = np.concatenate([chunk.samples async for chunk in stream])
            assert len(samples), f"{request.request_id} is silent"
            return hashlib.sha256(samples.tobytes()).hexdigest()

        texts = requests()
        digests = await asyncio.gather(*map(say, texts.values()))
    return dict(zip(texts, digests, strict=True))


def outcome(config: PipelineConfig) -> dict[str, str] | str:
    """The digests; or that this kind of processor cannot run the configuration and its start says so."""
    try:
        return asyncio.run(spoken(config))
    except ConfigError:
        return REFUSED


def processor() -> str:
    """Its kind, as far as libraries choose their kernels by it."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    kind = f"{facts.get('vendor_id')} family {facts.get('cpu family')} model {facts.get('model')}"
    return f"{kind}, {torch.backends.cpu.get_cpu_capability()}{' AMX' if Instructions.AMX in usable() else ''}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in SIMILAR)) for name in configurations()]
)
def test_every_configuration_says_what_it_said_before(name):
    table = json.loads(TABLE.read_text())
    if processor() not in table:
        pytest.skip(f"nothing was recorded on {processor()}, only on {', '.join(table)}")
    assert outcome(configurations()[name]) == table[processor()][name]


def record() -> None:
    """Write this processor's column."""
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    table[processor()] = {name: outcome(config) for name, config in configurations().items()}
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record()
