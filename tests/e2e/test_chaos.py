"""Minutes of what `make chaos` does for an hour: every reply right or visibly cut, nothing left, all as fast as before."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serve.config.app_config import PROJECT

pytestmark = pytest.mark.nightly

MINUTES, SEED = 4, 3  # most kinds of faults come once; `make chaos` draws other orders


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("front", ["HAProxy", "--plain"])
def test_nothing_is_wrong_or_left_after_minutes_of_chaos(tmp_path: Path, front: str):
    out = tmp_path / "chaos.json"
    command = [sys.executable, "-m", "scripts.chaos", "--minutes", str(MINUTES), "--seed", str(SEED), "--out", str(out)]
    command += [front] if front == "--plain" else []
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=1400)
    assert out.exists(), done.stderr[-4000:]
    report = json.loads(out.read_text())
    assert report["failures"] == [], json.dumps(report, indent=1)
    assert report["ends"]["whole"] > 100, "there was traffic"
    assert len({hit["fault"] for hit in report["faults"]}) > 5, "there were faults"
    assert done.returncode == 0
