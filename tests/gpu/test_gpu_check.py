"""On a machine with a GPU: every promise of scripts/evaluate/gpu_check, a test per section."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.evaluate.gpu_check.__main__ import arguments
from scripts.evaluate.gpu_check.sections import sections

ROOT = Path(__file__).resolve().parents[2]
PROMISING = ("machine", "parity", "equal_", "functional", "vocoder", "agreement")
SECTIONS = [section for name, section in sections(arguments().parse_args([])).items() if name.startswith(PROMISING)]

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.timeout(max(section.limit_s for section in SECTIONS) + 60),
]


@pytest.mark.parametrize("name", [section.name for section in SECTIONS])
def test_a_promise_holds_on_this_gpu(tmp_path, name):
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "scripts.evaluate.gpu_check", "--only", name, "--out", str(out)]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["promises"]
    assert all(promise["holds"] for promise in result["promises"].values()), result["promises"]
