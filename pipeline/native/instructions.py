"""Instructions: the sets of vector instructions that native code is written for, and which of them this machine has.

In:    the processor, and what the system and torch's ATEN_CPU_CAPABILITY permit
Out:   sets of instructions, the best one first
Owns:  the compiler's flags of each
Never: compiling (compiler.py)

ATEN_CPU_CAPABILITY=avx2 makes torch, and native code with it, behave as on a processor without AVX-512.
"""

import platform
from enum import StrEnum

import torch


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
    """Returns the sets of instructions that this process may use, the best one first; none on another kind of machine."""
    if platform.system() != "Linux":
        return ()
    if platform.machine() == "aarch64":
        return (Instructions.NEON,)
    if platform.machine() != "x86_64":
        return ()
    permitted, has = torch.backends.cpu.get_cpu_capability(), torch.cpu.get_capabilities()
    found = []
    if permitted.startswith("AVX512") and torch.cpu._is_avx512_supported():
        if torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx():
            found.append(Instructions.AMX)
        if has.get("avx512_vnni"):
            found.append(Instructions.AVX512_VNNI)
        found.append(Instructions.AVX512)
    if permitted.startswith("AVX") and torch.cpu._is_avx2_supported():
        if has.get("avx_vnni"):
            found.append(Instructions.AVX_VNNI)
        found.append(Instructions.AVX2)
    return tuple(found)
