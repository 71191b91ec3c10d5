"""Compiler: compiles C++ of this project to machine code on first use, once per machine.

In:    a source file of another folder, a set of instructions
Out:   the loaded library
Owns:  the folder of compiled libraries
Never: what the code computes, whether it is used; damaged code, or code that another user may have written

It needs Linux, a set of instructions that instructions.py knows and, once per machine and release, a C++ compiler and some
seconds. One process compiles at a time: replicas that start together wait for the first and load what it has compiled. A
compiled library ends with its own SHA-256, which the loader ignores: in one file, library and hash always belong together.
"""

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from pipeline.durable_file import write_durably
from pipeline.native.instructions import FLAGS, NONE, VARIABLE, Instructions, usable
from pipeline.paths import cache_home

HEADERS = Path(__file__).parent
SHIPPED = HEADERS / "built"  # what an image brings, compiled by `python -m serve.commands.launch.ship`
COMPILERS = ("c++", "g++", "clang++")
# No contraction: a compiler may join product and sum in one row of a block and not in the next.
COMMON_FLAGS = (
    "-std=c++20",
    "-O3",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-shared",
    "-fPIC",
    "-static-libstdc++",
    "-static-libgcc",
)
COMPILE_TIMEOUT_S = 600.0  # ten seconds where the machine is idle
NO_COMPILER = f"there is no C++ compiler on this machine ({', '.join(COMPILERS)})"
REMEDY = (
    "start again with more free memory, disk space and file descriptors, "
    f"or set {VARIABLE}={NONE} to decode with torch on every replica"
)
# What GCC, clang and the linker say, with a plain exit code, when a program of theirs was killed or found no room.
OF_THE_MOMENT = re.compile(
    r"signal terminated program|terminated with signal|Killed|Cannot allocate memory|memory exhausted|out of memory"
    r"|No space left on device|Disk quota exceeded|Too many open files|Resource temporarily unavailable|Read-only file system"
)
DIGEST_BYTES = hashlib.sha256().digest_size
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
ROOT = 0  # a library that was compiled into an image belongs to root


class NativeUnavailable(Exception):
    """This machine cannot run native code; the message says why. torch's own operations do the same work."""


class NativeFailed(Exception):
    """Native code belongs here and could not be had this time: memory, disk or descriptors ran out, or its compiler was killed.

    It ends the start: a replica that went on with torch would sound unlike one that was luckier.
    """


class CompilerStuck(NativeFailed):
    """The compiler does not end."""


@cache
def library(source: Path, folder: Path | None = None, *, instructions: Instructions | None = None) -> ctypes.CDLL:
    """Returns the loaded library of a source file, compiled first if this machine has no copy yet.

    Args:
        source: a C++ file that may include this folder's headers, and those beside it.
        folder: of compiled libraries; None: `native` in the cache folder.
        instructions: those that it may use; None: the best of this machine.

    Raises:
        NativeUnavailable: another kind of machine, no working compiler, or a folder that others may write to.
        NativeFailed: this time; CompilerStuck among them.
    """
    chosen = instructions or best_instructions()
    built = SHIPPED / _name(source, chosen)
    try:
        if not _is_whole(built):
            built = build(source, folder or cache_home() / "native", chosen)
        return ctypes.CDLL(str(built))
    except OSError as error:
        if not built.is_file() and _compiler() is None:
            raise NativeUnavailable(NO_COMPILER) from error
        raise NativeFailed(f"{built} cannot be compiled or loaded: {error}: {REMEDY}") from error


def build(source: Path, folder: Path, instructions: Instructions) -> Path:
    """Compiles a source file into a folder if it is not there yet, and returns the library's path.

    Raises:
        NativeUnavailable: no working compiler, or a folder that others may write to.
        NativeFailed: the compiler does not end, or was ended; CompilerStuck among them.
        OSError
    """
    built = folder / _name(source, instructions)
    _secure(folder)
    if not _is_whole(built):
        with _turn(folder):
            if not _is_whole(built):  # nor did the one before compile it
                code = _compile(source, (*COMMON_FLAGS, *FLAGS[instructions]))
                write_durably(built, code + hashlib.sha256(code).digest(), mode=0o755)
    return built


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Waits until no other process compiles into the folder; on a file system without locks each compiles for itself."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _name(source: Path, instructions: Instructions) -> str:
    """Returns the file name of a library: it changes with the flags, the source and every header."""
    flags = (*COMMON_FLAGS, *FLAGS[instructions])
    parts = (source, *sorted(HEADERS.glob("*.h")), *sorted(source.parent.glob("*.h")))
    key = hashlib.sha256(b"".join([" ".join(flags).encode(), *(part.read_bytes() for part in parts)])).hexdigest()[:16]
    return f"{source.stem}-{key}.so"


def best_instructions() -> Instructions:
    """Returns the best set of instructions of this machine.

    Raises:
        NativeUnavailable: it has none that native code is written for.
    """
    for instructions in usable():
        return instructions
    raise NativeUnavailable("it needs Linux on x86-64 with AVX-512 or AVX2, or on aarch64")


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def _secure(folder: Path) -> None:
    """Creates the folder of compiled libraries if there is none, and makes it writable for this user only.

    Raises:
        NativeUnavailable: it belongs to another user, or others may write to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & WRITABLE_BY_OTHERS:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~WRITABLE_BY_OTHERS)
        status = folder.stat()
    if not _is_ours(status):
        raise NativeUnavailable(
            f"{folder} belongs to another user or others may write to it, and code is loaded from there: make it this user's "
            "own (chown, chmod go-w), or set CHATTTS_HOME to another folder"
        )


def _is_ours(status: os.stat_result) -> bool:
    """True if only this user or root can have written it."""
    return status.st_uid in (os.geteuid(), ROOT) and not status.st_mode & WRITABLE_BY_OTHERS


def _is_whole(built: Path) -> bool:
    """True if the library is there and undamaged."""
    try:
        content, status = built.read_bytes(), built.stat()
    except FileNotFoundError:
        return False
    return _is_ours(status) and hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]


def _compile(source: Path, flags: tuple[str, ...]) -> bytes:
    """Compiles a source file and returns the library's bytes.

    Raises:
        NativeUnavailable: there is no compiler, or it cannot compile this.
        NativeFailed: it does not end, or was ended; CompilerStuck among them.
        OSError
    """
    compiler = _compiler()
    if compiler is None:
        raise NativeUnavailable(NO_COMPILER)
    with tempfile.TemporaryDirectory() as draft:
        output = Path(draft) / source.with_suffix(".so").name
        command = [compiler, *flags, "-I", str(HEADERS), "-o", str(output), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise CompilerStuck(
                f"{compiler} has not compiled {source.name} within {COMPILE_TIMEOUT_S:g} s: start again with less other work "
                f"on this machine, or set {VARIABLE}={NONE} to decode with torch on every replica"
            ) from error
        if done.returncode < 0 or OF_THE_MOMENT.search(done.stderr):
            why = done.stderr.strip()[-400:] or f"ended by signal {-done.returncode}"
            raise NativeFailed(f"{compiler} could not compile {source.name} this time: {why}: {REMEDY}")
        if done.returncode != 0:
            raise NativeUnavailable(f"{compiler} failed on {source.name}: {done.stderr.strip()[-400:]}")
        return output.read_bytes()
