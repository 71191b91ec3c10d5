"""Build: C++ of this project to machine code, when it is first needed, once for each machine.

In:    a source file of another room
Out:   the loaded library
Owns:  the folder of built libraries
Never: what the code computes, the choice whether it is used

It needs Linux on x86-64 with AVX-512 and, once per machine and release, a C++ compiler and some seconds.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from pipeline.checkpoints import cache_home

HEADERS = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
# No contraction: where it joins a product and a sum, it may do so for one row of a block and not for the next.
# AMX is compiled for every machine and used where there is one: no compiler puts its instructions anywhere by itself.
AMX = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
FLAGS = ("-std=c++20", "-O3", "-march=x86-64-v4", *AMX, "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC")
COMPILE_TIMEOUT_S = 120.0


class NativeUnavailable(Exception):
    """Says what this machine lacks; torch's own operations do the same work."""


@cache
def library(source: Path, folder: Path | None = None) -> ctypes.CDLL:
    """The built code, from the folder of built libraries or built into it.

    Args:
        source: a C++ file that may include this room's headers, and those beside it.
        folder: `native` in the cache folder if not given.

    Raises:
        NativeUnavailable: another kind of machine, or no working compiler.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64" or not torch.cpu._is_avx512_supported():
        raise NativeUnavailable("it needs Linux on x86-64 with AVX-512")
    parts = (source, *sorted(HEADERS.glob("*.h")), *sorted(source.parent.glob("*.h")))
    key = hashlib.sha256(b"".join([" ".join(FLAGS).encode(), *(part.read_bytes() for part in parts)])).hexdigest()[:16]
    built = (folder or cache_home() / "native") / f"{source.stem}-{key}.so"
    if not built.exists():
        _compile(source, built)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise NativeUnavailable(f"{built} cannot be loaded: {error}") from error


@cache
def has_tiles() -> bool:
    """Whether this process may use AMX: the processor has it and the system has given leave."""
    return torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


def _compile(source: Path, target: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeUnavailable(f"there is no C++ compiler here ({', '.join(COMPILERS)})")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Built beside its place and moved there whole: several processes may start at once.
        with tempfile.TemporaryDirectory(dir=target.parent) as draft:
            made = Path(draft) / target.name
            command = [compiler, *FLAGS, "-I", str(HEADERS), "-o", str(made), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
            if done.returncode != 0:
                raise NativeUnavailable(f"{compiler} refused {source.name}: {done.stderr.strip()[-400:]}")
            os.replace(made, target)
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailable(f"{target} cannot be built: {error}") from error
