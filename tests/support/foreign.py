"""Clients of other projects in virtual environments of their own, made once from the files in tests/foreign."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve.config.app_config import PROJECT

REQUIREMENTS = PROJECT / "tests/foreign/requirements.txt"
SCENARIOS = PROJECT / "tests/foreign/scenarios.py"
RIVA = PROJECT / "tests/foreign/riva.txt"
RIVA_SCENARIOS = PROJECT / "tests/foreign/riva_scenarios.py"
FOLDERS = {REQUIREMENTS: PROJECT / ".clients", RIVA: PROJECT / ".clients-riva"}


def python_of_clients(requirements: Path = REQUIREMENTS) -> str:
    """The interpreter of an environment. Where it cannot be made the test is skipped, or fails with CHATTTS_ALL_TOOLS=1."""
    folder = FOLDERS[requirements]
    python = folder / "bin/python"
    ready = folder / f"ready-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    if not ready.exists():
        made = _run(sys.executable, "-m", "venv", "--clear", str(folder)) or _run(
            str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(requirements)
        )
        if made:
            sentence = f"{folder.name} could not be made from {requirements.relative_to(PROJECT)}: {made[-500:]}"
            if os.environ.get("CHATTTS_ALL_TOOLS") == "1":
                pytest.fail(sentence)
            pytest.skip(sentence)
        ready.touch()
    return str(python)


def _run(*command: str) -> str:
    """Why a command failed; empty if it did not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr or "no words"
