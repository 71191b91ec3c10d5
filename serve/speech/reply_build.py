"""Reply build: a hash of everything in this process and in the settings that affects the bytes of a reply.

In:    the installed program, the settings of a version
Out:   the hash: two replicas with the same one, and the same engine, make the same bytes of the same request
Owns:  nothing
Never: a list of the files that count, which could fall behind: all of the domain count
"""

import functools
import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

import pipeline
from pipeline.checkpoint.manifest import file_sha256
from pipeline.config import PipelineConfig
from pipeline.native.instructions import usable

ROOT = Path(pipeline.__file__).parent
COMPILED = "__pycache__"
LIBRARIES = ("numpy", "av", "soxr", "OpenCC", "rjieba", "emoji")
"""whose results are heard: samples, containers, the reading of texts"""


def reply_build(settings: PipelineConfig) -> str:
    """Returns the hash for a version with these settings. Blocking on its first call: it reads the program."""
    return hashlib.sha256(f"{_program()}\n{settings.model_dump_json()}".encode()).hexdigest()[:32]


@functools.cache
def _program() -> str:
    files = sorted(path for path in ROOT.rglob("*") if path.is_file() and COMPILED not in path.parts)
    parts = [
        *(f"{path.relative_to(ROOT)}={file_sha256(path)}" for path in files),
        *(f"{name}={version(name)}" for name in LIBRARIES),
        f"{platform.machine()} {next(iter(usable()), '')}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
