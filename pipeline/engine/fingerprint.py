"""Build: one name for everything that decides which numbers an engine makes.

In:    EngineConfig, Checkpoint, this machine
Out:   a name: two engines of one name make the same steps of the same prompt
Owns:  nothing
Never: a list of what counts that somebody could forget to lengthen: what does not count is listed
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
from pipeline.native.compiler import NativeUnavailable, library

# Who waits how long for how much, and how steps are parcelled: no step has another number for it.
WITHOUT_EFFECT = frozenset(
    {
        *("kv_budget_mib", "block_steps", "max_waiting", "buffer_steps", "stall_timeout_s", "round_timeout_s"),
        *("standard_patience_s", "bulk_patience_s", "max_preempted"),
    }
)
SOURCES = ("spec.py", "checkpoint", "model", "engine", "native")  # of pipeline/: the code that computes the numbers


def engine_fingerprint(config: EngineConfig, checkpoint: Checkpoint) -> str:
    """The name of an engine's numbers: weights, code, configuration, libraries and processor. Blocking: it may hash weights."""
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
    """Its kind: libraries choose their kernels by it."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()} {torch.cuda.get_device_capability()} cuda {torch.version.cuda}"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} threads {torch.get_num_threads()}"


def _decode(config: EngineConfig) -> str:
    """What `auto` means here."""
    if config.device != "cpu" or config.decode == "torch":
        return "torch"
    try:
        library(SOURCE)
    except NativeUnavailable:
        return "torch"
    return "native"
