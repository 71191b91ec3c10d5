"""Scripts that work on a running cluster, on one that runs something else."""

import subprocess
import sys
from pathlib import Path

import ray

from serve.config.app_config import PROJECT
from tests.support.cluster import Cluster


def test_draining_what_does_not_run_there_says_so(cluster: Cluster, tmp_path: Path):
    path = tmp_path / "elsewhere.yaml"
    dev = (PROJECT / "configs/dev.yaml").read_text()
    path.write_text(dev.replace("- name: chattts\n", "- name: elsewhere\n").replace("configs/dev.yaml", str(path)))
    command = [
        sys.executable,
        "-m",
        "serve.commands.operate.drain",
        str(path),
        "--address",
        ray.get_runtime_context().gcs_address,
    ]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    words = done.stderr.splitlines()[-1]
    assert words.startswith("no application elsewhere runs there, but ")
    assert words.endswith(": is it another cluster?")
    assert cluster.speak(seed=1).status_code == 200
