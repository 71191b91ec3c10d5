"""Start: how long engine and vocoder of configs/gpu.yaml's shape take to start, and their memory beside the prediction.

In:    a checkpoint, a device
Out:   figures
Owns:  one engine and one vocoder
Never: promises
"""

import time
from contextlib import ExitStack, closing

import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.model.gpu.roofline import BESIDE, MIB, engine_bytes, needed_bytes
from pipeline.vocoder.vocoder import Vocoder
from scripts.evaluate.gpu_check.report import Report

ENGINE = {"dtype": "bfloat16", "slots": 64, "steps_per_round": 4, "prefill_rows": 4, "max_waiting": 64, "kv_budget_mib": 8192}
REHEARSED = {"slots": 2, "max_prompt": 64, "max_steps": 64}


def measure_start(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """Starts an engine twice, for the second start finds compiled kernels, and a vocoder beside the second."""
    is_gpu = device == "cuda"
    engine = EngineConfig.model_validate((ENGINE if is_gpu else REHEARSED) | {"device": device})
    vocoder = BESIDE if is_gpu else VocoderConfig()
    found: dict[str, float] = {}
    with ExitStack() as stack:
        for which in ("first", "second"):
            before, began = _used_mib(device), time.perf_counter()
            built = Engine(engine, checkpoint)
            found[f"{which}_engine_s"] = time.perf_counter() - began
            found[f"{which}_engine_mib"] = _used_mib(device) - before
            if which == "first":
                built.close()
            else:
                stack.enter_context(closing(built))
        began = time.perf_counter()
        stack.enter_context(closing(Vocoder(vocoder, checkpoint))).warm_up()
        found["vocoder_s"] = time.perf_counter() - began
        found["used_mib"] = _used_mib(device)
    if is_gpu:
        found["predicted_engine_mib"] = engine_bytes(engine) / MIB
        found["predicted_mib"] = needed_bytes(PipelineConfig(engine=engine, vocoder=vocoder)) / MIB
    report.figure("start", found, ", ".join(f"{name} {value:.1f}" for name, value in found.items()))


def _used_mib(device: str) -> float:
    """Returns the memory of the GPU that is in use; 0 on a CPU."""
    if device == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / MIB
