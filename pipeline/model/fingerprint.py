"""Fingerprint: a hash of everything that affects the numbers of one part of the model on this machine.

In:    the settings that count, the files of weights, the folders of code
Out:   the hash
Owns:  nothing
Never: what counts: the part says so
"""

import hashlib
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from pipeline.checkpoint.manifest import file_sha256, read_manifest
from pipeline.model.gpu.identity import gpu_identity

PIPELINE = Path(__file__).resolve().parents[1]
CODE = {".py", ".cpp", ".h"}


def fingerprint_of(
    settings: Mapping[str, object],
    root: Path,
    *,
    files: Iterable[str],
    sources: Iterable[str],
    device: str,
    others: Mapping[str, str],
) -> str:
    """Returns the hash of all arguments, of the library and of the processor. Blocking: it may hash the weights.

    Args:
        root: of the checkpoint.
        files: of weights, in the checkpoint.
        sources: files and folders of code, in pipeline/.
    """
    manifest = read_manifest(root) or {}
    parts = [
        *(f"{name}={value}" for name, value in sorted(settings.items())),
        *(f"{file}={manifest.get(file) or file_sha256(root / file)}" for file in files),
        *(f"{source}={digest}" for source, digest in _code(sources)),
        f"torch={torch.__version__}",
        f"processor={_processor(device)}",
        *(f"{name}={value}" for name, value in others.items()),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _code(sources: Iterable[str]) -> list[tuple[str, str]]:
    folders = [PIPELINE / name for name in sources]
    found = [
        source
        for folder in folders
        for source in ([folder] if folder.is_file() else folder.rglob("*"))
        if source.suffix in CODE
    ]
    return [(str(source.relative_to(PIPELINE)), file_sha256(source)) for source in sorted(found)]


def _processor(device: str) -> str:
    """Returns the kind of processor, by which libraries choose their kernels."""
    if device == "cuda":
        return gpu_identity()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} threads {torch.get_num_threads()}"
