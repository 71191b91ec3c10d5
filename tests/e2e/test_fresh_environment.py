"""A fresh virtual environment with what serving on a CPU needs: no torch in it, it speaks, and says what it lacks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from serve.config.app_config import PROJECT
from tests.support.started import started
from tests.support.wheel import build_wheel

pytestmark = pytest.mark.nightly

MB = 1_000_000
HEAVY = re.compile(r"torch|triton|nvidia|cuda|chattts$|transformers|vocos|vector-quantize|numba|scipy", re.IGNORECASE)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the environment."""
    folder = tmp_path_factory.mktemp("fresh")
    venv = folder / "venv"
    wheel = build_wheel(folder)
    for command in ([sys.executable, "-m", "venv", str(venv)], [str(venv / "bin/pip"), "install", "--quiet", str(wheel)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "venv" in command[:3]:
            pytest.fail(done.stderr)
        if done.returncode:
            unreachable = "No matching distribution" in done.stderr or "ConnectionError" in done.stderr
            (pytest.skip if unreachable and os.environ.get("CHATTTS_ALL_TOOLS") != "1" else pytest.fail)(done.stderr[-500:])
    return venv


def run(fresh: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of that environment, in a folder that is no checkout."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = inherited | {"CHATTTS_HOME": str(home), "PATH": f"{fresh / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [str(fresh / "bin" / words[0]), *words[1:]], cwd=fresh, env=environment, capture_output=True, text=True, check=False
    )


def test_it_has_no_torch_and_is_small(fresh: Path, home: Path):
    listed = json.loads(run(fresh, home, "pip", "list", "--format", "json").stdout)
    names = [package["name"] for package in listed]
    assert "ray" in names
    assert not [name for name in names if HEAVY.match(name)]
    size = sum(path.lstat().st_size for path in fresh.rglob("*") if path.is_file())
    assert size < 1000 * MB, "docs/installing.md and the Makefile name some 700 MB"


def test_every_command_says_what_it_needs(fresh: Path, home: Path):
    plain = "start,say,read,doctor,keys,weights fetch,weights make,config show,drain,leave"
    for command in plain.split(","):
        done = run(fresh, home, "chattts-serve", *command.split(), "--help")
        assert done.returncode == 0, done.stderr
    for command, extra in (("size", "torch"), ("weights convert", "torch"), ("bench", "bench"), ("judge", "judge")):
        done = run(fresh, home, "chattts-serve", *command.split(), "--help")
        assert done.returncode == 1, command
        assert f"pip install 'chattts-serve[{extra}]'" in done.stderr


def test_a_configuration_that_needs_torch_is_refused_with_what_to_install(fresh: Path, home: Path, tmp_path: Path):
    text = (PROJECT / "configs/dev.yaml").read_text()
    path = tmp_path / "windows.yaml"
    assert "vocoder: {threads: 1}" in text
    text = text.replace("vocoder: {threads: 1}", "vocoder: {threads: 1, method: windows}")
    path.write_text(text.replace("source: configs/dev.yaml", f"source: {path}"))
    for command in ("start", "doctor"):
        done = run(fresh, home, "chattts-serve", command, str(path))
        assert done.returncode == 1
        said = " ".join((done.stdout + done.stderr).split())
        assert "pip install 'chattts-serve[torch]'" in said
        assert "vocoder.method windows" in said


@pytest.mark.timeout(1200)
def test_it_serves_and_speaks(fresh: Path, folder: Path, tmp_path: Path):
    home = tmp_path / "a home"
    home.mkdir()
    paths = {"PYTHONPATH": "", "PATH": f"{fresh / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    program = (str(fresh / "bin/chattts-serve"), "start")
    with started(home=home, folder=folder, program=program, prefix=fresh, where=tmp_path, **paths) as service:
        service.wait_until_ready()
        body = {"input": "Five one one.", "seed": 1, "response_format": "wav"}
        reply = requests.post(f"{service.url}/v1/audio/speech", json=body, timeout=120)
        assert (reply.status_code, reply.content[:4]) == (200, b"RIFF")
        assert len(reply.content) > 24_000
        reply = requests.post(f"{service.url}/v1/audio/speech", json=body | {"seed_mode": "upstream"}, timeout=120)
        assert reply.status_code == 400
        assert "pip install 'chattts-serve[torch]'" in reply.text
        service.process.terminate()
        assert service.exit_code() == 0
