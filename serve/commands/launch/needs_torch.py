"""Needs torch: whether a configuration needs PyTorch on this machine, and what to install where it is missing.

In:    a pipeline's configuration; this machine
Out:   a sentence on what needs it and what to do
Never: torch itself; it compiles machine code, as a start does, only where PyTorch is missing
"""

from pathlib import Path

from pipeline.config import PipelineConfig
from pipeline.model.cpu.native import SOURCE as DECODE_STEP
from pipeline.model.gpu.placement import has_driver, pipeline_on_this_machine
from pipeline.native.compiler import NativeFailed, NativeUnavailable, library
from pipeline.vocoder.incremental.incremental_network import SOURCE as VOCODER
from pipeline.with_torch import INSTALL, has_torch

OR_NATIVE = "or let native code compute: a C++ compiler (Debian: g++) and a CPU with AVX2, or on aarch64"
OR_CPU = "or use configs/cpu.yaml"


def torch_problem(pipeline: PipelineConfig) -> tuple[str, str] | None:
    """Returns what needs PyTorch, which is not installed, and what to do; None if it is, or nothing needs it.

    Raises:
        ConfigError: `device: auto` becomes a device that the other settings do not fit.
    """
    if has_torch():
        return None
    placed = pipeline_on_this_machine(pipeline)
    engine, vocoder = placed.engine, placed.vocoder
    if "cuda" in (engine.device, vocoder.device):
        return _problem("device cuda", OR_CPU)
    if engine.decode == "torch":
        return _problem("engine.decode torch", "or set it to auto")
    if not vocoder.allows_incremental:
        return _problem(f"vocoder.method {vocoder.method}", "or leave it at its default")
    for source, setting in ((DECODE_STEP, f"engine.decode {engine.decode}"), (VOCODER, f"vocoder.method {vocoder.method}")):
        if reason := _not_native(source):
            return _problem(f"{setting} without native code ({reason})", OR_NATIVE)
    return None


def unused_gpu(pipeline: PipelineConfig) -> tuple[str, str] | None:
    """Returns why `device: auto` leaves a GPU unused, and what to do; None if it does not."""
    if "auto" in (pipeline.engine.device, pipeline.vocoder.device) and has_driver() and not has_torch():
        return "NVIDIA's driver is here and PyTorch is not, so device auto is cpu", f"{INSTALL}, for the GPU"
    return None


def _problem(feature: str, otherwise: str) -> tuple[str, str]:
    return f"{feature} needs PyTorch, which is not installed", f"{INSTALL}, {otherwise}"


def _not_native(source: Path) -> str | None:
    """Returns why a source file's native code cannot run here; None if it can."""
    try:
        library(source)
    except (NativeUnavailable, NativeFailed) as reason:
        return str(reason)
    return None
