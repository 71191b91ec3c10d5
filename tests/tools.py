"""Programs from Debian's packages that some tests run for real."""

import os
import shutil

import pytest


def needs_tool(program: str, *, package: str) -> str:
    """The program's path. Without it the test is skipped; with CHATTTS_ALL_TOOLS=1 it fails."""
    path = shutil.which(program)
    if path is None:
        sentence = f"{program} is not installed: apt-get install {package}"
        if os.environ.get("CHATTTS_ALL_TOOLS") == "1":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return path
