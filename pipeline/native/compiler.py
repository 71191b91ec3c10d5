"""Build: C++ of this project to machine code, when it is first needed, once for each machine.

In:    a source file of another room
Out:   the loaded library
Owns:  the folder of built libraries
Never: what the code computes, the choice whether it is used; code that is damaged, or that another user may have written

It needs Linux on x86-64 with AVX-512 and, once per machine and release, a C++ compiler and some seconds. A built library ends
with its own SHA-256, which a loader does not look at: one file, so that the two are never out of step.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from pipeline.durable_file import write_durably
from pipeline.paths import cache_home

HEADERS = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
# No contraction: where it joins a product and a sum, it may do so for one row of a block and not for the next.
# AMX is compiled for every machine and used where there is one: no compiler puts its instructions anywhere by itself.
AMX = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
FLAGS = ("-std=c++20", "-O3", "-march=x86-64-v4", *AMX, "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC")
COMPILE_TIMEOUT_S = 120.0
DIGEST_BYTES = hashlib.sha256().digest_size
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
ROOT = 0  # who may write anything anyway: a library built into an image is root's


class NativeUnavailable(Exception):
    """Says what this machine lacks; torch's own operations do the same work."""


@cache
def library(source: Path, folder: Path | None = None) -> ctypes.CDLL:
    """The built code, from the folder of built libraries or built into it.

    Args:
        source: a C++ file that may include this room's headers, and those beside it.
        folder: `native` in the cache folder if not given.

    Raises:
        NativeUnavailable: another kind of machine, no working compiler, or a folder others may write to.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64" or not torch.cpu._is_avx512_supported():
        raise NativeUnavailable("it needs Linux on x86-64 with AVX-512")
    parts = (source, *sorted(HEADERS.glob("*.h")), *sorted(source.parent.glob("*.h")))
    key = hashlib.sha256(b"".join([" ".join(FLAGS).encode(), *(part.read_bytes() for part in parts)])).hexdigest()[:16]
    built = (folder or cache_home() / "native") / f"{source.stem}-{key}.so"
    try:
        _secure(built.parent)
        if not _is_whole(built):
            code = _compile(source)
            write_durably(built, code + hashlib.sha256(code).digest(), mode=0o755)
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise NativeUnavailable(f"{built} cannot be built or loaded: {error}") from error


@cache
def has_tiles() -> bool:
    """Whether this process may use AMX: the processor has it and the system has given leave."""
    return torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


def _secure(folder: Path) -> None:
    """Where code is loaded from, nobody else may put any."""
    folder.mkdir(parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & WRITABLE_BY_OTHERS:
        folder.chmod(stat.S_IMODE(found.st_mode) & ~WRITABLE_BY_OTHERS)
        found = folder.stat()
    if not _is_ours(found):
        raise NativeUnavailable(
            f"{folder} belongs to another user or others may write to it, and code is loaded from there: make it this user's "
            "own (chown, chmod go-w), or set CHATTTS_HOME to another folder"
        )


def _is_ours(found: os.stat_result) -> bool:
    """Written by this user or by root, and by nobody else."""
    return found.st_uid in (os.geteuid(), ROOT) and not found.st_mode & WRITABLE_BY_OTHERS


def _is_whole(built: Path) -> bool:
    """Whether the library is there as it was built."""
    try:
        content, found = built.read_bytes(), built.stat()
    except FileNotFoundError:
        return False
    return _is_ours(found) and hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]


def _compile(source: Path) -> bytes:
    """The library's bytes.

    Raises:
        NativeUnavailable: there is no compiler, or it refuses.
        OSError
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeUnavailable(f"there is no C++ compiler here ({', '.join(COMPILERS)})")
    with tempfile.TemporaryDirectory() as draft:
        made = Path(draft) / source.with_suffix(".so").name
        command = [compiler, *FLAGS, "-I", str(HEADERS), "-o", str(made), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        except subprocess.SubprocessError as error:
            raise NativeUnavailable(f"{compiler} did not finish {source.name}: {error}") from error
        if done.returncode != 0:
            raise NativeUnavailable(f"{compiler} refused {source.name}: {done.stderr.strip()[-400:]}")
        return made.read_bytes()
