"""Sets of instructions: what a machine has, and what a user may take from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.native import instructions
from pipeline.native.instructions import Instructions, usable
from tests.support.machine import needs_instructions

ROOT = Path(__file__).resolve().parents[4]
SHOW = """
from pipeline.config import EngineConfig
from pipeline.engine import fingerprint
from pipeline.native.compiler import best_instructions
print(best_instructions(), fingerprint._form(EngineConfig()))
"""


@pytest.mark.parametrize(
    ("machine", "capability", "has", "expected"),
    [
        ("x86_64", "AVX512", {"avx512", "avx512_vnni", "amx", "avx2"}, ("amx", "avx512-vnni", "avx512", "avx2")),
        ("x86_64", "AVX512", {"avx512", "avx512_vnni", "avx2"}, ("avx512-vnni", "avx512", "avx2")),
        ("x86_64", "AVX512", {"avx512", "avx2"}, ("avx512", "avx2")),
        ("x86_64", "AVX2", {"avx512", "avx512_vnni", "amx", "avx2"}, ("avx2",)),
        ("x86_64", "AVX2", {"avx2", "avx_vnni"}, ("avx-vnni", "avx2")),
        ("x86_64", "DEFAULT", {"avx512", "avx2"}, ()),
        ("x86_64", "DEFAULT", set(), ()),
        ("aarch64", "DEFAULT", set(), ("neon",)),
        ("riscv64", "DEFAULT", set(), ()),
    ],
)
def test_the_best_that_is_there_and_permitted_comes_first(monkeypatch, machine, capability, has, expected):
    monkeypatch.setattr(instructions.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: "avx512" in has)
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: "avx2" in has)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: "amx" in has)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    assert usable() == tuple(map(Instructions, expected))


@needs_instructions(Instructions.AVX512)
@pytest.mark.slow
def test_a_user_takes_avx512_away():
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run([sys.executable, "-c", SHOW], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    name, *decode = done.stdout.split()
    assert name in ("avx2", "avx-vnni")
    assert decode == ["native", name], "and the fingerprint knows"
