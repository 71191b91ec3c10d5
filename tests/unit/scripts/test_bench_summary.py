"""The judged figures: verdicts, tables, and that the pages say what the kept results say."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench.record import RESULTS, is_done, publish, read
from scripts.bench.summary import (
    CPU,
    LIMIT_KEPT,
    LIMIT_MISSED,
    NOT_MEASURED,
    TARGET_REACHED,
    Judged,
    gap_table,
    markdown,
    number_format,
    page_sections,
    reader_table,
    summarise,
    write_page,
)

MORE = Judged("speed", "b1", "speed", limit=2.0, target=3.0)
LESS = Judged("delay", "b1", "delay", limit=15.0, target=4.0, unit="ms", less_is_better=True)


@pytest.mark.parametrize(
    ("figure", "median", "verdict"),
    [
        (MORE, 1.99, LIMIT_MISSED),
        (MORE, 2.0, LIMIT_KEPT),
        (MORE, 3.0, TARGET_REACHED),
        (LESS, 15.1, LIMIT_MISSED),
        (LESS, 15.0, LIMIT_KEPT),
        (LESS, 4, TARGET_REACHED),
    ],
)
def test_a_verdict_is_the_best_limit_that_is_kept(figure: Judged, median: float, verdict: str):
    assert figure.verdict(median) == verdict


@given(st.sampled_from(CPU), st.floats(0, 100), st.floats(0, 100))
def test_a_better_figure_never_has_a_worse_verdict(figure: Judged, one: float, other: float):
    order = [LIMIT_MISSED, LIMIT_KEPT, TARGET_REACHED]
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
    assert rows["rtf_one_request"]["verdict"] == LIMIT_KEPT
    assert rows["added_by_serve_ms"]["verdict"] == LIMIT_MISSED
    assert rows["ttfb_streaming"]["verdict"] == NOT_MEASURED
    text = markdown(summarise(tmp_path))
    assert "| ≥ 1.8 x | ≥ 2.5 x | 2 x (1.9 - 2.1) | limit kept |" in text
    assert "| ≤ 15 ms | ≤ 4 ms | 40 ms (39.9 - 40.1) | limit missed |" in text


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
        "1": medians(audio_s_per_s=1.717, ttfb_p95_s=0.743, continuous=1.0, answers=2),
        "8": medians(audio_s_per_s=5.487, ttfb_p95_s=1.667, continuous=0.6875, answers=16),
    }
    publish("b3", {"options": {"quick": True}, "judged": {}, "systems": {"upstream": {}, "service": crowd}}, tmp_path)
    rates = [
        {"rate": 0.758, "ttfb_p95_s": 0.872, "continuous": 1.0, "answers": 6},
        {"rate": 1.516, "ttfb_p95_s": 1.547, "continuous": 0.583, "answers": 12},
    ]
    publish("b4", {"options": {"quick": True}, "judged": {}, "rates": rates, "knee": 1.516, "smooth_knee": 0.758}, tmp_path)
    said = gap_table(tmp_path)
    assert "| one request at a time (B3) | 1.72 | 0.74 s | 6 | 100 % |" in said
    assert "| 8 in flight (B3) | 5.49 | 1.67 s | 48 | 69 % |" in said
    assert "| 1.52 requests per second, at random times (B4) |  | 1.55 s | 12 | 58 % |" in said
    assert "without one is 0.76 requests per second" in said
    assert any(said in sections.values() for sections in page_sections(tmp_path).values())
    assert reader_table(tmp_path) is None


def test_the_tables_stand_between_their_markers(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter\n")
    write_page({"a": "new"}, page)
    assert page.read_text() == "before\n<!-- a: begin -->\nnew\n<!-- a: end -->\nafter\n"
    with pytest.raises(ValueError, match="b: begin"):
        write_page({"b": "new"}, page)


def test_readers_see_both_systems_and_the_load_that_stays_smooth(tmp_path):
    speech = medians(ttfb_p50_s=3.83, underruns=3, stalled_s=2.31, audio_s_per_s=0.432, continuous=0.6875)
    judged = {
        "rtf_one_request": {"median": 5.6},
        "ttfb_streaming": {"median": 5.08},
        "audio_rate_to_upstream": {"median": 12.69},
    }
    common = {"options": {"quick": True}, "judged": {name: found | {"min": 1, "max": 2} for name, found in judged.items()}}
    publish("b1", {**common, "rtf_4_s": medians(upstream=2.51, in_process=0.46)}, tmp_path)
    publish("b2", {**common, "systems": {"upstream": speech, "service": speech}}, tmp_path)
    publish("b3", {**common, "systems": {"upstream": {"8": speech}, "service": {"8": speech}}}, tmp_path)
    rates = [{"rate": 0.758, "answers": 6}, {"rate": 1.516, "answers": 12}]
    publish("b4", {**common, "rates": rates, "knee": 1.516, "smooth_knee": 0.758}, tmp_path)
    said = reader_table(tmp_path)
    words = " ".join(said.split())
    assert "| compute time per second of audio, one request | 2.51 s | 0.46 s | 5.6 x |" in said
    assert "| pauses while that stream plays | 3 (2.3 s in all) | 3 (2.3 s in all) |  |" in said
    assert "5.6 times as fast as the ChatTTS package for one request, and 12.7 times for eight at once" in words
    assert "with eight at once, 31 % of the streams had a gap" in words
    assert "At 0.76 requests per second, at random times, none of the 6 streams had one." in words


@pytest.mark.parametrize("page", page_sections(RESULTS), ids=lambda page: page.name)
def test_the_pages_say_what_the_kept_results_say(page, tmp_path):
    copy = tmp_path / page.name
    copy.write_text(page.read_text())
    sections = page_sections(RESULTS)[page]
    assert sections
    write_page(sections, copy)
    assert copy.read_text() == page.read_text(), "python -m scripts.bench summary --readme"
