"""The benchmarks against a server they did not start, and against the package with nothing but processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from serve.config.app_config import PROJECT
from tests.support.cluster import Cluster

pytestmark = pytest.mark.nightly


def bench(folder: Path, *arguments: str) -> list[dict]:
    """The JSON lines of a run."""
    command = [sys.executable, "-m", "scripts.bench", *arguments, "--quick", "--repeats", "1", "--results", str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_any_speech_server_is_measured_by_its_address(cluster: Cluster, tmp_path: Path):
    streams, crowd = bench(tmp_path, "b2", "b3", "--url", cluster.url())
    heard = streams["systems"]["url"]
    assert 0 < heard["ttfb_p50_s"]["median"] <= heard["audible_p50_s"]["median"]
    assert crowd["systems"]["url"]["8"]["answers"]["median"] >= 16
    assert crowd["rates_at_crowd"]["url"]["median"] > 0
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_one_request_beside_the_package(tmp_path: Path):
    (result,) = bench(tmp_path, "b1", "--checkpoint", "small-random", "--threads", "1")
    ratio = result["judged"]["rtf_one_request"]
    assert np.isfinite(ratio["median"])
    for rows in ("decode_1", "decode_8"):
        assert 0 < result[rows]["memory_bandwidth"]["fraction_of_copy_bandwidth"] < 1
        assert result[rows]["step_ms"]["in_process"]["median"] > 0
    assert 0 < result["vocoder"]["core_s_per_audio_s"]["in_process"]["median"] < 100
