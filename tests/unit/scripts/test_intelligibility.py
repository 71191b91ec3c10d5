"""The judge: it says no above its limits, which are the demo checkpoint's card's."""

import json
import re
import sys
from pathlib import Path

import pytest

from scripts.evaluate import intelligibility as judge
from scripts.evaluate.intelligibility import ABOVE_TEACHER, REAL_TIME_FACTOR, TEACHER, beyond

pytestmark = pytest.mark.slow

CARD = (Path(__file__).resolve().parents[3] / "pipeline/assets/demo/README.md").read_text()
ABOVE = {"words": 12.0, "digits": 5.0}


def result(words: float, digits: float, factor: float, *, teacher: float | None = 0.05) -> dict:
    theirs = {} if teacher is None else {"teacher words": {"wer": teacher}, "teacher digits": {"wer": teacher}}
    return {"words": {"wer": words}, "digits": {"wer": digits}, "real_time_factor": factor, **theirs}


def cells(figure: str) -> list[str]:
    (line,) = [line for line in CARD.splitlines() if line.startswith(f"| {figure}")]
    return line.split("|")


def test_the_limits_are_the_cards():
    for kind, limit in ABOVE_TEACHER.items():
        _, _, must, _, measured, *_ = cells(kind)
        assert must.strip() == f"<= {limit:g} points"
        assert re.search(r"the teacher ([\d.]+) %", measured)[1] == f"{TEACHER[kind]:.1f}"
    assert cells("real-time factor")[2].strip() == f"<= {REAL_TIME_FACTOR:g}"


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (result(0.17, 0.10, 0.5), []),
        (result(0.171, 0.10, 0.5), ["words: 17.1 % of the words are wrong; the limit is 5.0 + 12 %"]),
        (result(0.0, 0.101, 0.5), ["digits: 10.1 % of the words are wrong; the limit is 5.0 + 5 %"]),
        (result(0.0, 0.0, 0.51), ["the real-time factor is 0.51; the limit is 0.5"]),
        (result(0.191, 0.105, 0.1, teacher=None), []),
        (result(0.192, 0.105, 0.1, teacher=None), ["words: 19.2 % of the words are wrong; the limit is 7.1 + 12 %"]),
    ],
)
def test_a_figure_beyond_its_limit_is_named(found, broken):
    assert beyond(found, ABOVE, 0.5) == broken


@pytest.mark.parametrize(("limit", "code"), [pytest.param("1e9", 0, marks=pytest.mark.nightly), ("0", 1)])
def test_its_exit_code_says_so(limit, code, taught_root, monkeypatch, capsys):
    lenient = [option for kind in ABOVE for option in (f"--{kind}-above-teacher", "100")]
    everything = ["--kinds", *ABOVE, *lenient, "--real-time-factor", limit]
    monkeypatch.setattr(sys, "argv", ["judge", "--local", "--checkpoint", str(taught_root), "--sentences", "1", *everything])
    assert judge.main() == code
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["words"]["words"] > 0
    assert ("the real-time factor is" in said.err) == bool(code)
