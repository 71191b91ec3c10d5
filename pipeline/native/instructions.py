"""Instructions: the sets of vector instructions that native code is written for, and which of them this machine has.

In:    the processor, as Linux reports it, and what CHATTTS_INSTRUCTIONS permits
Out:   sets of instructions, the best one first
Owns:  the compiler's flags of each
Never: compiling (compiler.py), torch

CHATTTS_INSTRUCTIONS=avx2 makes native code behave as on a processor with nothing better than AVX2; `none` turns it off.
torch has a variable of its own, ATEN_CPU_CAPABILITY.
"""

import ctypes
import os
import platform
from enum import StrEnum
from functools import cache
from pathlib import Path

from pipeline.errors import ConfigError

VARIABLE = "CHATTTS_INSTRUCTIONS"
NONE = "none"
CPUINFO = Path("/proc/cpuinfo")
# Names in /proc/cpuinfo: Linux leaves out what it does not save at a change of threads.
AVX2_FLAGS = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
AVX512_FLAGS = AVX2_FLAGS | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
AMX_FLAGS = AVX512_FLAGS | {"avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"}
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): a process asks Linux for the tiles before it uses them.
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18


class Instructions(StrEnum):
    """A set of vector instructions."""

    AMX = "amx"
    """AVX-512, and tiles for bfloat16 and int8"""
    AVX512_VNNI = "avx512-vnni"
    """AVX-512, and products of 16-bit integers that add up in one instruction: the sums of AVX-512, sooner"""
    AVX512 = "avx512"
    AVX_VNNI = "avx-vnni"
    """AVX2, and products of 16-bit integers that add up in one instruction: the sums of AVX2, sooner"""
    AVX2 = "avx2"
    NEON = "neon"


# Compilers emit AMX for explicit calls only, so one library serves processors with and without it.
WITH_VNNI = ("-march=x86-64-v4", "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8")
FLAGS = {
    Instructions.AMX: WITH_VNNI,
    Instructions.AVX512_VNNI: WITH_VNNI,
    Instructions.AVX512: ("-march=x86-64-v4",),
    Instructions.AVX_VNNI: ("-march=x86-64-v3", "-mavxvnni"),
    Instructions.AVX2: ("-march=x86-64-v3",),
    Instructions.NEON: ("-march=armv8-a",),
}
"""for the compiler"""


def usable() -> tuple[Instructions, ...]:
    """Returns the sets of instructions that this process may use, the best one first; none on another kind of machine.

    Raises:
        ConfigError: CHATTTS_INSTRUCTIONS names no set of instructions.
    """
    sets = _of_machine()
    best = os.environ.get(VARIABLE, "")
    if not best:
        return sets
    if best == NONE:
        return ()
    names = [str(instructions) for instructions in Instructions]
    if best not in names:
        raise ConfigError(f"{VARIABLE} is {best!r}; it may be {', '.join(names)} or {NONE}: the best set that native code uses")
    return tuple(instructions for instructions in sets if names.index(instructions) >= names.index(best))


def _of_machine() -> tuple[Instructions, ...]:
    if platform.system() != "Linux":
        return ()
    if platform.machine() == "aarch64":
        return (Instructions.NEON,)
    if platform.machine() != "x86_64":
        return ()
    flags, sets = processor_flags(), []
    if flags >= AMX_FLAGS and _tiles_permitted():
        sets.append(Instructions.AMX)
    if flags >= AVX512_FLAGS | {"avx512_vnni"}:
        sets.append(Instructions.AVX512_VNNI)
    if flags >= AVX512_FLAGS:
        sets.append(Instructions.AVX512)
    if flags >= AVX2_FLAGS | {"avx_vnni"}:
        sets.append(Instructions.AVX_VNNI)
    if flags >= AVX2_FLAGS:
        sets.append(Instructions.AVX2)
    return tuple(sets)


@cache
def processor_flags() -> frozenset[str]:
    """Returns what the first processor of this machine can do, in Linux's names; none if Linux does not say."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


@cache
def _tiles_permitted() -> bool:
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)
