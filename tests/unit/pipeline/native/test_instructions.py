"""Sets of instructions: what a machine has, and what a user may take from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.errors import ConfigError
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


AVX2, AVX512 = instructions.AVX2_FLAGS, instructions.AVX512_FLAGS


@pytest.mark.parametrize(
    ("machine", "flags", "permitted", "expected"),
    [
        ("x86_64", instructions.AMX_FLAGS, "", ("amx", "avx512-vnni", "avx512", "avx2")),
        ("x86_64", AVX512 | {"avx512_vnni"}, "", ("avx512-vnni", "avx512", "avx2")),
        ("x86_64", AVX512, "", ("avx512", "avx2")),
        ("x86_64", AVX512 - {"avx512vl"}, "", ("avx2",)),
        ("x86_64", AVX2 | {"avx_vnni"}, "", ("avx-vnni", "avx2")),
        ("x86_64", {"avx"}, "", ()),
        ("x86_64", frozenset(), "", ()),
        ("aarch64", frozenset(), "", ("neon",)),
        ("riscv64", frozenset(), "", ()),
        ("x86_64", instructions.AMX_FLAGS | {"avx_vnni"}, "amx", ("amx", "avx512-vnni", "avx512", "avx-vnni", "avx2")),
        ("x86_64", instructions.AMX_FLAGS | {"avx_vnni"}, "avx512", ("avx512", "avx-vnni", "avx2")),
        ("x86_64", instructions.AMX_FLAGS | {"avx_vnni"}, "avx2", ("avx2",)),
        ("x86_64", AVX512, "none", ()),
        ("aarch64", frozenset(), "avx2", ("neon",)),
    ],
)
def test_the_best_that_is_there_and_permitted_comes_first(monkeypatch, machine, flags, permitted, expected):
    monkeypatch.setattr(instructions.platform, "machine", lambda: machine)
    monkeypatch.setattr(instructions, "processor_flags", lambda: frozenset(flags))
    monkeypatch.setattr(instructions, "_tiles_permitted", lambda: True)
    monkeypatch.setenv(instructions.VARIABLE, permitted)
    assert usable() == tuple(map(Instructions, expected))


def test_a_set_of_instructions_that_there_is_not_is_refused_with_those_there_are(monkeypatch):
    monkeypatch.setenv(instructions.VARIABLE, "sse2")
    with pytest.raises(ConfigError, match=r"CHATTTS_INSTRUCTIONS is 'sse2'; it may be amx, .*, avx2, neon or none"):
        usable()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what a processor can do")
def test_torch_knows_the_same_processor():
    flags = instructions.processor_flags()
    assert (flags >= AVX2) == torch.cpu._is_avx2_supported()
    assert (flags >= AVX512) == torch.cpu._is_avx512_supported()


@needs_instructions(Instructions.AVX512)
@pytest.mark.slow
def test_a_user_takes_avx512_away():
    environment = os.environ | {instructions.VARIABLE: "avx2"}
    done = subprocess.run([sys.executable, "-c", SHOW], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["avx2", "native", "avx2"], "and the fingerprint knows"
