"""Clients of other projects in environments of their own, made once from the files in tests/foreign."""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from serve.config.app_config import PROJECT

REQUIREMENTS = PROJECT / "tests/foreign/requirements.txt"
SCENARIOS = PROJECT / "tests/foreign/scenarios.py"
CALLS = PROJECT / "tests/foreign/calls.txt"
CALLS_TABLE = PROJECT / "tests/foreign/calls.toml"
RIVA = PROJECT / "tests/foreign/riva.txt"
RIVA_SCENARIOS = PROJECT / "tests/foreign/riva_scenarios.py"
NODE = PROJECT / "tests/foreign/node.txt"
JAVASCRIPT = PROJECT / "tests/foreign/javascript"
FOLDERS = {
    REQUIREMENTS: PROJECT / ".clients",
    CALLS: PROJECT / ".clients-calls",
    RIVA: PROJECT / ".clients-riva",
    NODE: PROJECT / ".clients-javascript",
}
LOCKED = ("package.json", "package-lock.json")


def python_of_clients(requirements: Path = REQUIREMENTS) -> str:
    """The interpreter of an environment. Where it cannot be made the test is skipped, or fails with CHATTTS_ALL_TOOLS=1."""
    folder = FOLDERS[requirements]
    python = str(folder / "bin/python")
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(requirements))
    _make_once(folder, (requirements,), (sys.executable, "-m", "venv", "--clear", str(folder)), install)
    return python


def make_calls(client: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Makes the calls that tests/foreign/calls.toml has of a client; skipped or failed as `python_of_clients`."""
    environment, packages = dict(os.environ), list[str]()
    if tomllib.loads(CALLS_TABLE.read_text())[client]["language"] == "JavaScript":
        environment, packages = _with_node(), ["--packages", str(FOLDERS[NODE])]
    python = python_of_clients(RIVA if client == "riva" else CALLS)
    command = [python, str(CALLS_TABLE.with_suffix(".py")), client, *packages, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, env=environment)


def run_javascript(code: str, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a module of JavaScript beside the clients' packages, in a folder; skipped or failed as `python_of_clients`."""
    environment, packages = _with_node(), FOLDERS[NODE]
    script = packages / "script.mjs"
    script.write_text(code)
    command = ["node", str(script), *arguments]
    return subprocess.run(
        command, cwd=folder or packages, capture_output=True, text=True, check=False, timeout=300, env=environment
    )


def _with_node() -> dict[str, str]:
    """The environment in which `node` is that of the clients, whose packages are installed."""
    python = Path(python_of_clients(NODE))
    packages = FOLDERS[NODE]
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    copied = [packages / name for name in LOCKED]
    for path in copied:
        shutil.copy(JAVASCRIPT / path.name, path)
    npm = (str(python.parent / "npm"), "ci", "--prefix", str(packages), "--ignore-scripts", "--no-audit", "--no-fund")
    _make_once(packages, copied, npm, environment=environment)
    return environment


def _make_once(
    folder: Path, sources: tuple[Path, ...] | list[Path], *commands: tuple[str, ...], environment: dict[str, str] | None = None
) -> None:
    """Runs the commands that make a folder from its sources, unless they were run for these."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    ready = folder / f"ready-{digest}"
    if ready.exists():
        return
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            names = " and ".join(path.name for path in sources)
            sentence = f"{folder.name} could not be made from {names}: {(done.stderr or 'no words')[-500:]}"
            if os.environ.get("CHATTTS_ALL_TOOLS") == "1":
                pytest.fail(sentence)
            pytest.skip(sentence)
    ready.touch()
