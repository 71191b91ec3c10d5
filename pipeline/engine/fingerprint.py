"""Fingerprint: a hash of everything that affects an engine's numbers.

In:    EngineConfig, Checkpoint, this machine
Out:   the hash: two engines with the same one generate the same steps from the same prompt
Owns:  nothing
Never: a list of the settings that count, which could fall behind: the settings that do not count are listed
"""

import hashlib
import platform
from pathlib import Path

import torch

from pipeline.checkpoint.layout import EMBED_FILE, GPT_CONFIG_FILE, GPT_FILE
from pipeline.checkpoint.manifest import file_sha256, read_manifest
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.model.cpu.native import SOURCE
from pipeline.model.gpu.identity import gpu_identity
from pipeline.model.gpu.placement import on_this_machine
from pipeline.native.compiler import NativeUnavailable, library

# Scheduling and buffering settings; they do not affect the generated numbers.
WITHOUT_EFFECT = frozenset(
    {
        *("kv_budget_mib", "block_steps", "max_waiting", "buffer_steps", "stall_timeout_s", "round_timeout_s"),
        *("gpu_memory_share", "standard_patience_s", "bulk_patience_s", "max_preempted"),
    }
)
SOURCES = ("spec.py", "checkpoint", "model", "engine", "native")  # of pipeline/: the code that computes the numbers


def engine_fingerprint(config: EngineConfig, checkpoint: Checkpoint) -> str:
    """Returns a hash of weights, code, configuration, libraries and kind of processor. Blocking: it may hash the weights."""
    config = on_this_machine(config)
    parts = [
        *(f"{name}={value}" for name, value in sorted(config.model_dump().items()) if name not in WITHOUT_EFFECT),
        *(f"{file}={digest}" for file, digest in _weights(checkpoint.root)),
        *(f"{source}={digest}" for source, digest in _code()),
        f"torch={torch.__version__}",
        f"processor={_processor(config.device)}",
        f"decode={_decode(config)}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _weights(root: Path) -> list[tuple[str, str]]:
    manifest = read_manifest(root) or {}
    return [(file, manifest.get(file) or file_sha256(root / file)) for file in (GPT_FILE, EMBED_FILE, GPT_CONFIG_FILE)]


def _code() -> list[tuple[str, str]]:
    pipeline = Path(__file__).resolve().parents[1]
    folders = [pipeline / name for name in SOURCES]
    sources = [
        source
        for folder in folders
        for source in ([folder] if folder.is_file() else folder.rglob("*"))
        if source.suffix in {".py", ".cpp", ".h"}
    ]
    return [(str(source.relative_to(pipeline)), file_sha256(source)) for source in sorted(sources)]


def _processor(device: str) -> str:
    """Returns the kind of processor, by which libraries choose their kernels."""
    if device == "cuda":
        return gpu_identity()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} threads {torch.get_num_threads()}"


def _decode(config: EngineConfig) -> str:
    """Returns how this machine decodes: `native` or `torch`; resolves `auto`."""
    if config.device != "cpu" or config.decode == "torch":
        return "torch"
    try:
        library(SOURCE)
    except NativeUnavailable:
        return "torch"
    return "native"
