"""The GPU check's own logic, where there is no GPU: it runs, and it can say no."""

import json
import sys

import numpy as np
import pytest

from scripts.evaluate.gpu_check import __main__ as gpu_check
from scripts.evaluate.gpu_check.equality import promise_equal
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.workload import Take


@pytest.mark.slow
def test_every_check_runs_and_writes_its_figures(tmp_path, monkeypatch, demo_root):
    output = tmp_path / "result.json"
    arguments = ["--device", "cpu", "--checkpoint", str(demo_root), "--slots", "2", "--steps", "8", "--seconds", "1"]
    monkeypatch.setattr(sys, "argv", ["gpu_check", *arguments, "-o", str(output)])
    assert gpu_check.main() == 0
    result = json.loads(output.read_text())
    assert all(promise["holds"] for promise in result["promises"].values())
    assert len(result["promises"]) >= 14
    assert {"kv int8: alone = crowded (2 slots)", "weights and kv int8: keeps the distribution"} <= set(result["promises"])
    assert result["failed"] == {}
    assert result["figures"]["step_2_slots_auto"]["step_ms"] > 0
    assert result["figures"]["step_2_slots_auto_kv_int8"]["over_bfloat16"] > 0
    assert result["figures"]["speech"]["requests"] > 0
    assert result["figures"]["upstream_step_s"]["1"] > 0
    assert result["hardware"]["torch"]


def test_a_single_bit_is_a_no():
    take = Take(np.ones((3, 2), np.float32), np.ones((3, 4), np.int64))
    other = Take(np.nextafter(take.hidden, 2), take.codes)
    report = Report()
    promise_equal(report, "equal", [take], [other])
    assert not report.all_hold
    assert report.promises["equal"]["detail"] == "0 of 1 bit-equal"


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main() == 3
    assert "no CUDA device" in capsys.readouterr().err


def test_a_section_that_fails_is_said_and_the_next_one_runs(capsys):
    report, ran = Report(), []

    def fail() -> None:
        raise ValueError("no such kernel")

    report.section("first", fail)
    report.section("second", lambda: ran.append("second"))
    assert ran == ["second"]
    assert report.failed == {"first": "ValueError: no such kernel"}
    assert not report.all_hold
    assert "no such kernel" in capsys.readouterr().err


def test_an_aim_that_is_missed_is_no_failure():
    report = Report()
    report.aim("audio-s/s", 400, 500, at_least=True)
    report.aim("p95", 100, 150, at_least=False)
    assert [aim["reached"] for aim in report.aims.values()] == [False, True]
    assert report.all_hold
