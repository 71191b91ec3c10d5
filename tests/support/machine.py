"""Machine: what this one can do, for tests that need it."""

import os

import pytest

from pipeline.model.cpu.native import SOURCE
from pipeline.native.compiler import NativeUnavailable, library
from pipeline.native.instructions import Instructions, usable


def _why_not_native() -> str | None:
    try:
        library(SOURCE)
    except NativeUnavailable as reason:
        return str(reason)
    return None


WHY_NOT_NATIVE = _why_not_native()

needs_native = pytest.mark.skipif(
    # Where every tool is promised, a missing compiler (Debian's g++) is a failure; another kind of processor is not.
    WHY_NOT_NATIVE is not None and ("AVX-512" in WHY_NOT_NATIVE or os.environ.get("CHATTTS_ALL_TOOLS") != "1"),
    reason=f"no native code: {WHY_NOT_NATIVE}; Debian's package is g++",
)


def needs_instructions(instructions: Instructions) -> pytest.MarkDecorator:
    """Skips a test on processors without them."""
    return pytest.mark.skipif(
        WHY_NOT_NATIVE is not None or instructions not in usable(), reason=f"no native code for {instructions} on this machine"
    )


needs_tiles = needs_instructions(Instructions.AMX)
