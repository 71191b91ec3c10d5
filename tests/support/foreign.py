"""Clients of other projects in a virtual environment of their own, made from tests/foreign/requirements.txt once."""

import hashlib
import os
import subprocess
import sys

import pytest

from serve.config.app_config import PROJECT

FOLDER = PROJECT / ".clients"
REQUIREMENTS = PROJECT / "tests/foreign/requirements.txt"
SCENARIOS = PROJECT / "tests/foreign/scenarios.py"


def python_of_clients() -> str:
    """The interpreter of that environment. Where it cannot be made the test is skipped, or fails with CHATTTS_ALL_TOOLS=1."""
    python = FOLDER / "bin/python"
    ready = FOLDER / f"ready-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    if not ready.exists():
        made = _run(sys.executable, "-m", "venv", "--clear", str(FOLDER)) or _run(
            str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS)
        )
        if made:
            sentence = f"{FOLDER.name} could not be made from {REQUIREMENTS.relative_to(PROJECT)}: {made[-500:]}"
            if os.environ.get("CHATTTS_ALL_TOOLS") == "1":
                pytest.fail(sentence)
            pytest.skip(sentence)
        ready.touch()
    return str(python)


def _run(*command: str) -> str:
    """Why a command failed; empty if it did not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr or "no words"
