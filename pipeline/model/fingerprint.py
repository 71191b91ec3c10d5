"""Fingerprint: a hash of everything that affects the numbers of one part of the model on this machine.

In:    the settings that count, the files of weights, the folders of code
Out:   the hash
Never: what counts: the part says so
"""

import hashlib
import platform
from collections.abc import Container, Iterable
from pathlib import Path

import numpy as np

from pipeline.checkpoint.manifest import file_sha256, read_manifest
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.native.compiler import NativeUnavailable, best_instructions, library
from pipeline.native.thread_count import default_threads
from pipeline.with_torch import torch_part

PIPELINE = Path(__file__).resolve().parents[1]
CODE = {".py", ".cpp", ".h"}
NATIVE = "native"


def fingerprint_of(
    config: EngineConfig | VocoderConfig,
    checkpoint: Checkpoint,
    *,
    without_effect: Container[str],
    files: Iterable[str],
    sources: Iterable[str],
    form: str,
) -> str:
    """Returns a hash of weights, code, configuration, libraries and kind of processor. Blocking: it may hash the weights.

    Args:
        config: on this machine (gpu/placement.py).
        without_effect: its settings that affect no number.
        files: of weights, in the checkpoint.
        sources: files and folders of code, in pipeline/.
        form: how this machine computes it.
    """
    root, manifest = checkpoint.root, read_manifest(checkpoint.root) or {}
    parts = [
        *(f"{name}={value}" for name, value in sorted(config.model_dump().items()) if name not in without_effect),
        *(f"{file}={manifest.get(file) or file_sha256(root / file)}" for file in files),
        *(f"{source}={digest}" for source, digest in _code(sources)),
        *(_for_native() if form.startswith(NATIVE) else _for_torch(config.device)),
        f"form={form}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def native_form(source: Path) -> str | None:
    """Returns with which instructions a native source computes here; None: it cannot be built."""
    try:
        library(source)
        return f"{NATIVE} {best_instructions()}"
    except NativeUnavailable:
        return None


def _code(sources: Iterable[str]) -> list[tuple[str, str]]:
    folders = [PIPELINE / name for name in sources]
    files = [
        source
        for folder in folders
        for source in ([folder] if folder.is_file() else folder.rglob("*"))
        if source.suffix in CODE
    ]
    return [(str(source.relative_to(PIPELINE)), file_sha256(source)) for source in sorted(files)]


def _for_native() -> tuple[str, ...]:
    """Returns what native code's numbers may depend on, besides its own form."""
    return f"numpy={np.__version__}", f"processor={platform.machine()} threads {default_threads()}"


def _for_torch(device: str) -> tuple[str, ...]:
    """Returns torch's version and the kind of processor, by which it chooses its kernels."""
    torch = torch_part("torch", wanted_for="decoding without native code")
    if device == "cuda":
        processor = torch_part("pipeline.model.gpu.identity", wanted_for="device cuda").gpu_identity()
    else:
        processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} threads {torch.get_num_threads()}"
    return f"torch={torch.__version__}", f"processor={processor}"
