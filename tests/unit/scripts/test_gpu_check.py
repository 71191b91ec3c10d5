"""The GPU check's own logic, where there is no GPU: it runs, and it can say no."""

import json
import sys

import numpy as np

from scripts import gpu_check


def test_every_check_runs_and_writes_its_figures(tmp_path, monkeypatch, demo_root):
    output = tmp_path / "result.json"
    arguments = ["--device", "cpu", "--checkpoint", str(demo_root), "--slots", "2", "--steps", "8", "-o", str(output)]
    monkeypatch.setattr(sys, "argv", ["gpu_check", *arguments])
    assert gpu_check.main() == 0
    result = json.loads(output.read_text())
    assert all(promise["holds"] for promise in result["promises"].values())
    assert len(result["promises"]) >= 8
    assert result["bfloat16_2_slots"]["step_ms"] > 0
    assert result["hardware"]["torch"]


def test_a_single_bit_is_a_no():
    take = gpu_check.Take(np.ones((3, 2), np.float32), np.ones((3, 4), np.int64))
    other = gpu_check.Take(np.nextafter(take.hidden, 2), take.codes)
    report = gpu_check.Report()
    gpu_check._promise_equal(report, "equal", [take], [other])
    assert not report.all_hold
    assert report.promises["equal"]["detail"] == "0 of 1 bit-equal"


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main() == 2
    assert "no CUDA device" in capsys.readouterr().err
