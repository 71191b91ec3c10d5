"""Machine: what the device is, how fast its memory copies, and how long engine and vocoder take to start there.

In:    a device; a checkpoint
Out:   figures
Never: a step's time
"""

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, closing

import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.engine.engine import Engine
from pipeline.model.gpu.graphs import record, use_own_stream
from pipeline.model.gpu.identity import driver_version
from pipeline.model.gpu.prepare import prepare_gpu
from pipeline.vocoder.vocoder import Vocoder
from scripts.bench.device_clock import seconds_on
from scripts.bench.memory_bandwidth import copy_bandwidth
from scripts.evaluate.gpu_check.report import Report
from serve.simulation.roofline import BESIDE, MIB, engine_bytes, needed_bytes

PROGRAMS = ("git", "gcc", "g++", "nvcc", "ncu", "nvidia-cuda-mps-control")
NODES = 500
ROWS = (1, 8, 16, 32, 64, 128)
"""slots of the engines in the other sections"""
ENGINE = {"dtype": "bfloat16", "slots": 64, "steps_per_round": 4, "prefill_rows": 4, "max_waiting": 64, "kv_budget_mib": 8192}
REHEARSED = {"slots": 2, "max_prompt": 64, "max_steps": 64}


def measure_machine(report: Report, device: str) -> None:
    """Describes the machine, and measures what the other sections compare with."""
    programs = {name: shutil.which(name) for name in PROGRAMS}
    report.figure("programs", programs, ", ".join(name for name, place in programs.items() if place) or "none")
    report.figure("cpus", os.cpu_count(), str(os.cpu_count()))
    bandwidth = copy_bandwidth(device)
    report.figure("copy_bandwidth", bandwidth, f"{bandwidth / 1e9:.0f} GB/s of random bytes, reads and writes")
    if device == "cuda":
        _describe(report)
        _measure_node(report)
        for rows in ROWS:
            prepare_gpu(rows=[rows], dtype=torch.bfloat16)
        report.promise("matrix products are right", True, f"float32 and bfloat16, {', '.join(map(str, ROWS))} rows")


def _describe(report: Report) -> None:
    properties = torch.cuda.get_device_properties(0)
    described = {
        "name": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "capability": [properties.major, properties.minor],
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "driver": driver_version(),
    }
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=clocks.max.sm,clocks.max.mem,power.limit", "--format=csv,noheader"]
        described["nvidia_smi"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    report.figure("gpu", described, ", ".join(f"{name} {value}" for name, value in described.items()))


def _measure_node(report: Report) -> None:
    """Measures a node that does nothing: the floor below every small kernel of a step."""
    tiny = torch.zeros(32, device="cuda")
    use_own_stream(urgent=False)

    def work() -> None:
        for _ in range(NODES):
            tiny.add_(1)

    node_us = seconds_on("cuda", record(work).replay, times=10) / NODES * 1e6
    report.figure("graph_node_us", node_us, f"{node_us:.2f} us")


def measure_start(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """Starts an engine twice, for the second start finds compiled kernels, and a vocoder beside the second."""
    is_gpu = device == "cuda"
    engine = EngineConfig.model_validate((ENGINE if is_gpu else REHEARSED) | {"device": device})
    vocoder = BESIDE if is_gpu else VocoderConfig()
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        for which in ("first", "second"):
            before, began = _used_mib(device), time.perf_counter()
            built = Engine(engine, checkpoint)
            figures[f"{which}_engine_s"] = time.perf_counter() - began
            figures[f"{which}_engine_mib"] = _used_mib(device) - before
            if which == "first":
                built.close()
            else:
                stack.enter_context(closing(built))
        began = time.perf_counter()
        stack.enter_context(closing(Vocoder(vocoder, checkpoint))).warm_up()
        figures["vocoder_s"] = time.perf_counter() - began
        figures["used_mib"] = _used_mib(device)
    if is_gpu:
        figures["predicted_engine_mib"] = engine_bytes(engine) / MIB
        figures["predicted_mib"] = needed_bytes(PipelineConfig(engine=engine, vocoder=vocoder)) / MIB
    report.figure("start", figures, ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))


def _used_mib(device: str) -> float:
    """Returns the memory of the GPU that is in use; 0 on a CPU."""
    if device == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / MIB
