"""Speech: engine and vocoder together in one process, measured with clients in a closed loop.

In:    a checkpoint, a device
Out:   figures and aims
Owns:  one engine and one vocoder at a time
Never: Ray, HTTP
"""

import asyncio
import time
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.spec import SAMPLE_RATE, STEPS_PER_SECOND
from pipeline.types import SamplingParams
from pipeline.vocoder.stream import StreamDecoder
from pipeline.vocoder.vocoder import Vocoder
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.sequences import prompt, takes


def lengths(count: int, chance: np.random.Generator) -> NDArray[np.int64]:
    """Returns lengths of utterances [steps]: lognormal around 4 s, as requests have them."""
    return (np.clip(np.exp(chance.normal(np.log(4.0), 0.6, count)), 0.8, 25) * STEPS_PER_SECOND).astype(np.int64)


def measure_speech(report: Report, checkpoint: Checkpoint, device: str, slots: int, seconds: float) -> None:
    """Measures engine and vocoder together in this process, with `slots` clients in a closed loop."""
    engine_config = EngineConfig.model_validate(
        {"device": device, "dtype": "bfloat16", "slots": slots, "max_prompt": 64, "max_steps": 1280, "kv_budget_mib": 65536}
        | ({"steps_per_round": 2, "prefill_rows": 4} if device == "cuda" else {})
    )
    settings: dict[str, Any] = {"rows": 8, "matmul": "tf32"} if device == "cuda" else {"rows": 1}  # as in configs/gpu.yaml
    vocoder_config = VocoderConfig.model_validate({"device": device} | settings)
    with closing(Engine(engine_config, checkpoint)) as engine, closing(Vocoder(vocoder_config, checkpoint)) as vocoder:
        vocoder.warm_up()
        takes(engine, [0], checkpoint.gpt_spec.width, 16)
        samples, first = asyncio.run(_closed_loop(engine, StreamDecoder(vocoder), checkpoint.gpt_spec.width, slots, seconds))
    rate, (p50, p95) = samples / SAMPLE_RATE / seconds, np.percentile(np.array(first) * 1e3, [50, 95])
    report.figure(
        f"speech_{slots}",
        {
            "in_flight": slots,
            "audio_s_per_s": rate,
            "ttfb_p50_ms": float(p50),
            "ttfb_p95_ms": float(p95),
            "requests": len(first),
        },
        f"{slots} in flight: {rate:.0f} audio-s/s, first audio after {p50:.0f} ms p50, {p95:.0f} ms p95, {len(first)} requests",
    )
    report.aim(f"seconds of audio per second, in process, {slots} in flight", rate, 500, at_least=True)
    report.aim(f"first audio p95 [ms], in process, {slots} in flight", float(p95), 150, at_least=False)


async def _closed_loop(
    engine: Engine, stream: StreamDecoder, width: int, slots: int, seconds: float
) -> tuple[int, list[float]]:
    """Runs `slots` clients, each of which sends its next request once the last has ended.

    Returns:
        The samples that arrived within the time, and the seconds to the first audio of each request.
    """
    chance = np.random.default_rng(0)
    first: list[float] = []
    received = 0
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal received
        while time.perf_counter() < until:
            length = int(lengths(1, chance)[0])
            sampling = SamplingParams(seed=int(chance.integers(2**31)), min_steps=length)
            began, is_first = time.perf_counter(), True
            blocks = engine.generate(prompt(number, width, length), sampling, timeout_s=100, admitted=True)
            async for chunk in stream.decode(blocks):
                if is_first:
                    first.append(time.perf_counter() - began)
                is_first = False
                if time.perf_counter() < until:
                    received += len(chunk.samples)
            number += slots

    await asyncio.gather(*map(client, range(slots)))
    return received, first
