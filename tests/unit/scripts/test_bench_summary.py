"""The judged figures: verdicts, tables, and that the README says what the kept results say."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench.record import RESULTS, is_done, publish, read
from scripts.bench.summary import (
    CPU,
    README,
    Judged,
    gap_table,
    markdown,
    number_format,
    readme_sections,
    summarise,
    write_readme,
)

MORE = Judged("speed", "b1", "speed", must=2.0, aim=3.0)
LESS = Judged("delay", "b1", "delay", must=15.0, aim=4.0, unit="ms", less_is_better=True)


@pytest.mark.parametrize(
    ("figure", "median", "verdict"),
    [
        (MORE, 1.99, "missed"),
        (MORE, 2.0, "must"),
        (MORE, 3.0, "aim"),
        (LESS, 15.1, "missed"),
        (LESS, 15.0, "must"),
        (LESS, 4, "aim"),
    ],
)
def test_a_verdict_is_the_best_limit_that_is_kept(figure: Judged, median: float, verdict: str):
    assert figure.verdict(median) == verdict


@given(st.sampled_from(CPU), st.floats(0, 100), st.floats(0, 100))
def test_a_better_figure_never_has_a_worse_verdict(figure: Judged, one: float, other: float):
    order = ["missed", "must", "aim"]
    worse, better = sorted((one, other), reverse=figure.less_is_better)
    assert order.index(figure.verdict(worse)) <= order.index(figure.verdict(better))


def keep(folder, scenario: str, figure: str, median: float) -> None:
    values = {"median": median, "min": median - 0.1, "max": median + 0.1, "n": 3}
    publish(scenario, {"options": {"quick": False, "repeats": 3}, "judged": {figure: values}}, folder)


def test_a_summary_judges_what_is_kept_and_names_what_is_missing(tmp_path):
    keep(tmp_path, "b1", "rtf_one_request", 2.0)
    keep(tmp_path, "b10", "added_by_serve_ms", 40.0)
    rows = {row["figure"]: row for row in summarise(tmp_path)["figures"]}
    assert len(rows) == len(CPU)
    assert rows["rtf_one_request"]["verdict"] == "must"
    assert rows["added_by_serve_ms"]["verdict"] == "missed"
    assert rows["rtf_growth"]["verdict"] == "not measured"
    text = markdown(summarise(tmp_path))
    assert "| ≥ 1.8 x | ≥ 2.5 x | 2 x (1.9 - 2.1) | must |" in text
    assert "| ≤ 15 ms | ≤ 4 ms | 40 ms (39.9 - 40.1) | missed |" in text


def test_a_result_holds_the_machine_and_the_commit_and_is_the_last_line(tmp_path, capsys):
    keep(tmp_path, "b1", "rtf_one_request", 2.0)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == read("b1", tmp_path)
    assert {"cpu", "cores", "torch", "commit"} <= result["hardware"].keys()
    assert is_done("b1", tmp_path, quick=False)
    assert not is_done("b1", tmp_path, quick=True)
    assert not is_done("b2", tmp_path, quick=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "bfloat16"),
        ({"weights": "int8"}, "bfloat16 with int8 weights"),
        ({"weights": "dtype", "kv": "int8"}, "bfloat16 with int8 keys and values"),
        ({"weights": "int8", "kv": "int8"}, "bfloat16 with int8 weights and int8 keys and values"),
    ],
)
def test_a_figure_says_what_its_service_rounds(changes: dict[str, str], said: str):
    engine = {f"pipeline.engine.{name}": value for name, value in ({"dtype": "bfloat16"} | changes).items()}
    assert number_format({"options": {"service": {"changes": engine}}}) == f"this service in {said}"


def medians(**figures: float) -> dict:
    return {name: {"median": value, "min": value, "max": value, "n": 3} for name, value in figures.items()}


def test_gaps_stand_beside_the_rates(tmp_path):
    assert gap_table(tmp_path) is None
    crowd = {
        "1": medians(audio_s_per_s=1.717, ttfb_p95_s=0.743, continuous=1.0),
        "8": medians(audio_s_per_s=5.487, ttfb_p95_s=1.667, continuous=0.6875),
    }
    publish("b3", {"options": {"quick": True}, "judged": {}, "systems": {"U": {}, "P": crowd}}, tmp_path)
    rates = [
        {"rate": 0.758, "ttfb_p95_s": 0.872, "continuous": 1.0},
        {"rate": 1.516, "ttfb_p95_s": 1.547, "continuous": 0.583},
    ]
    publish("b4", {"options": {"quick": True}, "judged": {}, "rates": rates, "knee": 1.516, "smooth_knee": 0.758}, tmp_path)
    said = gap_table(tmp_path)
    assert "| one request at a time (B3) | 1.72 | 0.74 s | 100 % |" in said
    assert "| 8 in flight (B3) | 5.49 | 1.67 s | 69 % |" in said
    assert "| 1.52 requests a second, at random times (B4) |  | 1.55 s | 58 % |" in said
    assert "none up to 0.76 requests a second" in said
    assert said in readme_sections(tmp_path)["benchmarks"]


def test_the_tables_stand_between_their_markers(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter\n")
    write_readme({"a": "new"}, page)
    assert page.read_text() == "before\n<!-- a: begin -->\nnew\n<!-- a: end -->\nafter\n"
    with pytest.raises(ValueError, match="b: begin"):
        write_readme({"b": "new"}, page)


def test_the_readme_says_what_the_kept_results_say(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(README.read_text())
    write_readme(readme_sections(RESULTS), copy)
    assert copy.read_text() == README.read_text(), "python -m scripts.bench summary --readme"
