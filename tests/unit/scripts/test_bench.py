"""The benchmarks' arithmetic: requests, what a listener notices, the parts of a figure; the processes of a service."""

import asyncio
import json
import math
import re
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import PipelineConfig
from pipeline.spec import SAMPLE_RATE, STEPS_PER_SECOND
from pipeline.text.frontend import LocalTextFrontend
from pipeline.text.segment import MEASURED
from pipeline.types import SynthesisRequest, Voice
from pipeline.voices.catalogue import DEFAULT
from pipeline.yaml_loader import parse_yaml
from scripts.bench import record
from scripts.bench.__main__ import SCENARIOS, options_of, parse, title_of
from scripts.bench.bench import MAX_PROMPT, MAX_STEPS
from scripts.bench.client import Refused, drive
from scripts.bench.processes import CoreWatch, Samples, Usage, core_use, family, listening, usage
from scripts.bench.record import RESULTS, SETS, is_done, publish, read
from scripts.bench.scenarios.account import engine_account
from scripts.bench.scenarios.listeners import prompt_listeners
from scripts.bench.settings import document, from_zero
from scripts.bench.summary import (
    CPU,
    LIMIT_KEPT,
    LIMIT_MISSED,
    NOT_MEASURED,
    TARGET_REACHED,
    WHOLE,
    Judged,
    gap_table,
    markdown,
    number_format,
    page_sections,
    reader_table,
    summarise,
    write_page,
)
from scripts.bench.timeline import Timeline, audio_rate, failures, latency, percentile, request_rate, spread
from scripts.bench.workload import (
    Lengths,
    Load,
    Utterance,
    open_loop,
    poisson,
    random_of,
    saturating,
    utterance,
    utterances,
)
from serve.config.config_file import find_mistakes
from tests.support.pages import PAGES

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@pytest.fixture(scope="module")
def frontend(demo_root: Path) -> LocalTextFrontend:
    """The service's own, with the numbers it is measured with."""
    return LocalTextFrontend(demo_root, MEASURED, max_prompt=MAX_PROMPT, max_steps=MAX_STEPS)


@given(st.floats(0.1, 25.0), st.integers(0, 2**32))
def test_a_text_has_the_steps_of_its_length(frontend: LocalTextFrontend, audio_s: float, number: int):
    requested = utterance(audio_s, number)
    request = SynthesisRequest(request_id="", text=requested.text, voice=DEFAULT)
    (prompt,) = asyncio.run(frontend.plan(request, {DEFAULT: Voice(DEFAULT, None)})).prompts
    assert prompt.max_steps == requested.steps
    assert abs(requested.audio_s - audio_s) <= 1.5 / STEPS_PER_SECOND + 1e-9


def test_texts_are_unique_and_follow_from_the_seed():
    drawn = utterances(200, Lengths(), 1, "b3")
    assert drawn == utterances(200, Lengths(), 1, "b3") != utterances(200, Lengths(), 2, "b3")
    assert len({speech.text for speech in drawn}) == len({speech.seed for speech in drawn}) == 200


def test_lengths_and_arrivals_have_their_distributions():
    lengths = Lengths(median_s=4.0, sigma=0.6, shortest_s=0.8, longest_s=25.0)
    drawn = np.array([lengths.draw(random_of("lengths", index)) for index in range(2000)])
    assert (drawn.min() >= 0.8, drawn.max() <= 25.0) == (True, True)
    assert (np.median(drawn), np.log(drawn).std()) == (pytest.approx(4.0, rel=0.06), pytest.approx(0.6, rel=0.06))
    times = poisson(5.0, 400.0, "arrivals")
    gaps = np.diff(times)
    assert all(earlier < later for earlier, later in pairwise(times))
    assert times == poisson(5.0, 400.0, "arrivals")
    assert (times[-1] < 400.0, len(times)) == (True, pytest.approx(2000, rel=0.08))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.08), "an exponential's deviation is its mean"


def test_loads_have_enough_requests():
    saturated, arriving = saturating(4, 8, Lengths(), 1), open_loop(5.0, 10.0, Lengths(), 1)
    assert (len(saturated.utterances), saturated.clients, saturated.completions) == (12, 4, 8)
    assert arriving.arrivals_s == tuple(poisson(5.0, 10.0, 1))
    assert open_loop(1e-9, 1.0, Lengths(), 1).arrivals_s == (0.0,), "at least one"
    with pytest.raises(ValueError, match="1 arrivals for 2"):
        Load(arriving.utterances[:2], arrivals_s=(0.0,))


def answer(*pieces: tuple[float, float], **fields: object) -> Timeline:
    """A complete answer of (arrival, seconds of audio) pieces."""
    arrivals = [(when, round(seconds * SAMPLE_RATE)) for when, seconds in pieces]
    line = Timeline(0, sum(seconds for _, seconds in pieces), 0.0, status=200, arrivals=arrivals, complete=True)
    line.ended_s = pieces[-1][0]
    return replace(line, **fields)


@pytest.mark.parametrize(
    ("line", "stalls", "is_continuous"),
    [
        (answer((1.0, 0.5), (1.4, 0.5), (2.0, 0.5)), [], True),  # each came before the last was played
        (answer((1.0, 0.5), (1.55, 0.5)), [0.05], True),  # 50 ms are not noticed
        (answer((1.0, 0.5), (1.75, 0.5), (3.0, 1.0)), [0.25, 0.75], False),
        (answer((9.0, 0.5)), [], True),  # waiting for the first piece is no underrun
        (answer((1.0, 0.5), complete=False), [], False),
        (Timeline(0, 1.0, complete=True), [], False),  # without audio
    ],
)
def test_underruns_are_what_a_player_notices(line: Timeline, stalls: list[float], is_continuous: bool):
    assert line.stalls_s() == pytest.approx(stalls)
    assert line.is_continuous == is_continuous


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(0.01, 2.0)), min_size=1, max_size=20))
def test_playing_ends_after_all_audio_and_all_stalls(pieces: list[tuple[float, float]]):
    times = np.cumsum([gap for gap, _ in pieces])
    line = answer(*zip(times.tolist(), [seconds for _, seconds in pieces], strict=True))
    assert sum(line.stalls_s()) <= line.arrivals[-1][0] - line.arrivals[0][0] + 1e-9
    assert line.played_s == pytest.approx(line.arrivals[0][0] + line.received_s + sum(line.stalls_s()))
    assert line.played_s >= line.arrivals[-1][0] + line.arrivals[-1][1] / SAMPLE_RATE - 1e-6, (
        "no piece is played before it came"
    )


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50), st.floats(0, 100))
def test_a_percentile_is_a_value_that_enough_others_do_not_exceed(values: list[float], percent: float):
    rank = percentile(values, percent)
    assert rank in values
    assert sum(value <= rank for value in values) >= percent / 100 * len(values) - 1e-9
    with pytest.raises(ValueError, match="no values"):
        percentile([], percent)


def test_a_rate_counts_the_audio_until_the_last_completion():
    first, second = answer((1.0, 2.0), ended_s=2.0), answer((3.0, 2.0), ended_s=4.0)
    late = answer((3.5, 0.5), (5.0, 4.0), ended_s=6.0)
    assert audio_rate([first, second, late], 2) == pytest.approx((2.0 + 2.0 + 0.5) / 4.0)
    assert request_rate([first, second], 2) == pytest.approx(2 / 4.0)
    with pytest.raises(ValueError, match="not 3"):
        audio_rate([first, second], 3)


def test_latency_is_of_complete_answers():
    lines = [answer((1.0, 0.5), (1.2, 0.5)), answer((2.0, 0.5), (2.75, 0.5)), Timeline(2, 1.0, status=429)]
    figures = latency(lines)
    names = ("answers", "ttfb_p50_s", "ttfb_p95_s", "underruns", "continuous")
    assert [figures[name] for name in names] == [2, 1.0, 2.0, 1, 0.5]
    assert math.isnan(figures["audible_p50_s"]), "silence is never audible"
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}


class VirtualTime(selectors.SelectSelector):
    """The clock of an event loop: a wait for a timer takes no time, and the clock shows as if it had."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class Speaker:
    """Speaks at once: a second of noise in two pieces, the second one cut within a sample."""

    def __init__(self) -> None:
        self.running = self.most = 0

    def run(self, load: Load, speak: Callable | None = None) -> list[Timeline]:
        clock = VirtualTime()
        loop = asyncio.SelectorEventLoop(clock)
        loop.time = lambda: clock.now  # type: ignore[method-assign]
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(drive(load, speak or self.speak, loop.time))

    async def speak(self, utterance: Utterance, streamed: bool, on_sent: Callable[[], None]):
        if utterance.seed == 429:
            raise Refused(429, 2.0, "full")
        await asyncio.sleep(0.5)  # connecting
        on_sent()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.25)
            yield b"\x00\x40" * 12_000 + b"\x00"
            await asyncio.sleep(0.25)
            yield b"\x40" + b"\x00\x40" * 11_999
        finally:
            self.running -= 1


def speeches(*seeds: int) -> tuple[Utterance, ...]:
    return tuple(Utterance("text", 47, seed) for seed in seeds)


def test_a_closed_loop_has_so_many_in_flight():
    speaker = Speaker()
    lines = speaker.run(Load(speeches(*range(9)), clients=3))
    assert speaker.most == 3
    assert {(line.complete, line.received_s, len(line.md5)) for line in lines} == {(True, 1.0, 32)}
    assert len({line.md5 for line in lines}) == 1
    assert sorted({round(line.sent_s, 3) for line in lines}) == [0.5, 1.5, 2.5], "connecting is not counted"
    assert {round(line.ttfb_s, 3) for line in lines} == {0.25}
    assert {round(line.audible_s - line.sent_s, 3) for line in lines} == {0.25}


def test_a_listener_plays_an_answer_to_its_end_before_the_next_request():
    first, second = Speaker().run(Load(speeches(1, 2), clients=1, in_real_time=True))
    assert first.played_s == pytest.approx(0.75 + 1.0)
    assert second.sent_s == pytest.approx(first.played_s + 0.5)
    refused, answered = Speaker().run(Load(speeches(429, 1), clients=1, in_real_time=True))
    assert (refused.played_s, answered.sent_s, answered.complete) == (0.0, 0.5, True), "nothing to play, nothing to wait for"


def test_a_load_ends_with_the_last_completion():
    speaker = Speaker()
    lines = speaker.run(Load(speeches(*range(100)), clients=4, completions=8))
    assert [line.complete for line in lines] == [True] * 8 + [False] * (len(lines) - 8)
    assert all(line.disconnected for line in lines[8:])
    assert speaker.running == 0, "every stream was closed"


def test_an_open_loop_waits_for_no_answer():
    speaker = Speaker()
    lines = speaker.run(Load(speeches(*range(5)), arrivals_s=(0.0, 0.0, 0.1, 0.2, 0.3)))
    assert speaker.most == 5
    assert [round(line.sent_s - 0.5, 3) for line in lines] == [line.due_s for line in lines] == [0.0, 0.0, 0.1, 0.2, 0.3]


def test_failures_are_neither_refusals_nor_disconnects():
    async def broken(utterance: Utterance, streamed: bool, on_sent: Callable[[], None]):
        yield b"\x00\x40"
        raise OSError("gone")

    async def silent(utterance: Utterance, streamed: bool, on_sent: Callable[[], None]):
        await asyncio.sleep(1e6)
        yield b""

    async def missing(utterance: Utterance, streamed: bool, on_sent: Callable[[], None]):
        raise Refused(404, None, "no such voice")
        yield b""

    (refused,) = Speaker().run(Load(speeches(429), clients=1))
    assert (refused.status, refused.retry_after_s, refused.complete, refused.error) == (429, 2.0, False, "status 429: full")
    lines = [Speaker().run(Load(speeches(1), clients=1), speak)[0] for speak in (broken, silent, missing)]
    assert [line.complete for line in lines] == [False] * 3
    assert failures([refused, Timeline(0, disconnected=True), answer((1.0, 1.0))]) == []
    assert failures(lines) == ["OSError: gone", "TimeoutError: ", "status 404: no such voice"]
    assert failures([Timeline(3, 1.0, status=200)]) == ["incomplete answer, status 200"]


def test_the_processes_of_a_service_are_recognised_and_measured():
    listen = "server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True)"
    command = [sys.executable, "-c", f"import socket, sys; {listen}; sys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={"BENCH_MARK": "a b"}, start_new_session=True, **pipes) as process:
        port = int(process.stdout.readline())
        assert [member.pid for member in family("BENCH_MARK=a b")] == [process.pid]
        assert [member.pid for member in family("BENCH_MARK=a")] == []
        assert [member.pid for member in listening(port)] == [process.pid]
        assert process.pid in [member.pid for member in family("BENCH_MARK=a", psutil.Process().pid)], "a descendant"
        (member,) = listening(port)
        assert (usage(member).rss_mib > 1, usage(member).threads) == (True, 1)
        process.stdin.close()
    assert (usage(member), core_use(member)) == (Usage(0.0, 0, 0), (0.0, 0.0)), "it has ended"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert listening(free.getsockname()[1]) == []


def test_a_busy_process_is_seen_to_run():
    this = psutil.Process()
    with CoreWatch({"this": [this], "none": []}) as watch:
        began, _ = core_use(this)
        while core_use(this)[0] < began + 0.1:
            pass
    use = watch.samples.means()
    assert use["this"]["running"] * watch.samples.times_s[-1] >= 0.1
    assert use["none"] == {"running": 0, "waiting": 0}
    weighted = Samples([1.0, 4.0], {"a": [0.5, 1.0]}, {"a": [2.0, 0.0]}).means()
    assert weighted == {"a": {"running": 3.5 / 4, "waiting": 0.5}}, "periods count with their length"


def test_every_second_of_the_engine_is_in_one_place():
    spent = {"rounds": 100, "steps": 600, "sequences": 10, "prefill_s": 1.0, "decode_s": 3.0}
    account = engine_account(spent, 5.0, [(2.0, 0.005), (4.0, 0.008), (8.0, 0.016)])
    assert (account["rows_per_round"], account["rounds_alone_s"]) == (6, pytest.approx(1.2))
    places = ("rounds_alone_s", "rounds_longer_s", "prefill_s", "neither_s")
    assert sum(account[place] for place in places) == pytest.approx(5.0)
    assert account["prefill_ms_each"] == pytest.approx(100)


def test_every_scenario_has_its_title():
    assert [run.__doc__.partition(",")[0].lower() for run in SCENARIOS.values()] == list(SCENARIOS)
    assert all(title_of(run.__doc__) for run in SCENARIOS.values())


def test_every_system_runs_on_the_configurations_device():
    on_gpu = options_of(parse(["b1", "--config", str(CONFIGS / "gpu.yaml"), "--weights", "int8"]))
    assert on_gpu.device == "cuda"
    assert not [path for path in on_gpu.settings.changes if path.endswith("threads")], "of a CPU alone"
    pipeline = document(on_gpu.settings, 8000, None)["applications"][0]["args"]["pipeline"]
    checked = PipelineConfig.model_validate(pipeline)
    assert (checked.engine.device, checked.vocoder.device) == ("cuda", "cuda")
    on_cpu = options_of(parse(["b1", "--config", str(CONFIGS / "cpu.yaml"), "--device", "cpu", "--weights", "int8"]))
    assert on_cpu.settings.changes["pipeline.engine.threads"] == on_cpu.threads


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--config", str(CONFIGS / "cpu.yaml"), "--device", "cuda"], "choose another --config"),
        (["--config", str(CONFIGS / "gpu.yaml"), "--device", "cpu"], "choose another --config"),
        (["--config", "auto.yaml"], "--device cpu or --device cuda"),
        (["--url", "http://x", "--device", "cuda"], "has no effect"),
    ],
)
def test_a_device_that_the_service_would_not_have_is_refused(tmp_path, monkeypatch, capsys, arguments, why):
    monkeypatch.chdir(tmp_path)
    Path("auto.yaml").write_text((CONFIGS / "gpu.yaml").read_text().replace("device: cuda", "device: auto"))
    assert parse(["b1", "--config", "auto.yaml", "--device", "cuda"]).device == "cuda"
    with pytest.raises(SystemExit):
        parse(["b2", *arguments])
    assert why in capsys.readouterr().err


def test_a_service_that_sleeps_is_configured_as_the_page_shows_it(tmp_path: Path):
    options = options_of(parse(["b11"]))
    sleeping = document(replace(options.demo_settings, sleeps_after_s=600), 8000, tmp_path / "config.yaml")
    assert not find_mistakes(sleeping)
    assert sleeping["applications"][0]["args"]["jobs"]["folder"] == str(tmp_path / "jobs"), "a service of its own"
    (application,) = sleeping["applications"]
    scaled = {entry["name"]: entry.get("autoscaling_config") for entry in application["deployments"]}
    assert scaled == {"Ingress": None} | dict.fromkeys(("TextNormalizer", "AcousticModel", "Vocoder"), from_zero(600))
    (example,) = re.findall(r"```yaml\n(autoscaling_config:.*?)```", PAGES["docs/ray.md"], re.DOTALL)
    assert parse_yaml(example)["autoscaling_config"] == from_zero(600)


# The judged figures: verdicts, tables, and that the pages say what the kept results say.

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
def test_a_better_figure_never_has_a_worse_verdict(figure: Judged, first: float, other: float):
    order = [LIMIT_MISSED, LIMIT_KEPT, TARGET_REACHED]
    worse, better = sorted((first, other), reverse=figure.less_is_better)
    assert order.index(figure.verdict(worse)) <= order.index(figure.verdict(better))


def keep(folder, scenario: str, figure: str, median: float) -> None:
    values = {"median": median, "min": median - 0.1, "max": median + 0.1, "n": 3}
    publish(scenario, {"options": {"quick": False, "repeats": 3}, "judged": {figure: values}}, folder)


def test_a_summary_judges_what_is_kept_and_names_what_is_missing(tmp_path):
    keep(tmp_path / "epyc", "b1", "rtf_one_request", 20.0)
    keep(tmp_path / "xeon", "b1", "rtf_one_request", 8.0)
    keep(tmp_path / "epyc", "b10", "added_by_serve_ms", 40.0)
    rows = {row["figure"]: row for row in summarise(tmp_path)["figures"]}
    assert len(rows) == len(CPU)
    assert rows["rtf_one_request"]["verdict"] == LIMIT_KEPT, "the worst counts"
    assert rows["added_by_serve_ms"]["verdict"] == LIMIT_MISSED
    assert rows["ttfb_streaming"]["verdict"] == NOT_MEASURED
    text = markdown(summarise(tmp_path))
    assert "| ≥ 7 x | ≥ 10 x | 20 x (19.9 - 20.1) | 8 x (7.9 - 8.1) | limit kept |" in text
    assert "| ≤ 15 ms | ≤ 4 ms | 40 ms (39.9 - 40.1) |  | limit missed |" in text


@pytest.mark.parametrize(
    ("cpu", "masks", "folder"),
    [
        ("AMD EPYC 9R14", {}, "epyc"),
        ("AMD EPYC 9R14", {"CHATTTS_INSTRUCTIONS": "avx2"}, "epyc-masked"),
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", {}, "xeon"),
        ("Intel(R) Xeon(R) Processor", {}, "xeon-amx"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", {}, "intel-r-xeon-r-platinum-8481c-cpu-2-70ghz"),
    ],
)
def test_a_set_of_results_is_of_one_kind_of_processor(monkeypatch, cpu: str, masks: dict[str, str], folder: str):
    monkeypatch.setattr(record, "hardware", lambda: {"cpu": cpu, "masks": masks})
    assert record.here() == RESULTS / folder


def test_a_result_holds_the_machine_and_the_commit_and_is_the_last_line(tmp_path, capsys):
    keep(tmp_path, "b1", "rtf_one_request", 2.0)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == read("b1", tmp_path)
    assert {"cpu", "cores", "torch", "commit"} <= result["hardware"].keys()
    assert is_done("b1", tmp_path, quick=False)
    assert not is_done("b1", tmp_path, quick=True)
    assert not is_done("b2", tmp_path, quick=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "bfloat16"),
        ({"weights": "int8"}, "bfloat16 with int8 weights"),
        ({"weights": "dtype", "kv": "int8"}, "bfloat16 with int8 keys and values"),
        ({"weights": "int8", "kv": "int8"}, "bfloat16 with int8 weights and int8 keys and values"),
    ],
)
def test_a_figure_says_what_its_service_rounds(changes: dict[str, str], words: str):
    engine = {f"pipeline.engine.{name}": value for name, value in ({"dtype": "bfloat16"} | changes).items()}
    assert number_format({"options": {"service": {"changes": engine}}}) == f"this service in {words}"


def medians(**figures: float) -> dict:
    return {name: {"median": value, "min": value, "max": value, "n": 3} for name, value in figures.items()}


def test_gaps_stand_beside_the_rates(tmp_path):
    root, tmp_path = tmp_path, tmp_path / WHOLE
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
    table = gap_table(tmp_path)
    assert "| one request at a time (B3) | 1.72 | 0.74 s | 6 | 100 % |" in table
    assert "| 8 in flight (B3) | 5.49 | 1.67 s | 48 | 69 % |" in table
    assert "| 1.52 requests per second, at random times (B4) |  | 1.55 s | 12 | 58 % |" in table
    assert "without one is 0.76 requests per second" in table
    assert any(table in sections.values() for sections in page_sections(root).values())
    assert reader_table(root) is None


def test_the_tables_stand_between_their_markers(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter\n")
    write_page({"a": "new"}, page)
    assert page.read_text() == "before\n<!-- a: begin -->\nnew\n<!-- a: end -->\nafter\n"
    with pytest.raises(ValueError, match="b: begin"):
        write_page({"b": "new"}, page)


def test_readers_see_both_systems_on_every_kind_of_processor(tmp_path):
    speech = medians(ttfb_p50_s=3.83, audio_s_per_s=0.432, continuous=0.6875)
    for name, alone, eight in (("epyc", 9.2, 19.8), ("xeon", 5.6, 12.69)):
        judged = {"rtf_one_request": alone, "ttfb_streaming": 5.08, "audio_rate_to_upstream": eight}
        common = {"options": {"quick": True}, "judged": {figure: {"median": value} for figure, value in judged.items()}}
        publish("b1", {**common, "rtf_4_s": medians(upstream=2.51, in_process=0.46)}, tmp_path / name)
        publish("b2", {**common, "systems": {"upstream": speech, "service": speech}}, tmp_path / name)
        publish("b3", {**common, "systems": {"upstream": {"8": speech}, "service": {"8": speech}}}, tmp_path / name)
    table = reader_table(tmp_path)
    words = " ".join(table.split())
    assert f"| {SETS['xeon']} | 2.51 s → 0.46 s: 5.6 x | 3.83 s → 3.83 s: 5.1 x | 0.43 → 0.43: 12.7 x |" in table
    assert "6 to 9 times as fast as the ChatTTS package for one request and 13 to 20 times for eight at once" in words
    assert "31 % of the streams had a gap" in words


@pytest.mark.parametrize(
    ("rows", "prompt"),
    [
        ([(1.0, 0.5), (0.96, 0.9), (0.96, 1.1), (1.0, 0.8)], 2),
        ([(0.9, 0.5)], 0),
        ([(1.0, 1.0)], 1),
    ],
)
def test_a_listener_who_waits_for_long_does_not_count(rows: list[tuple[float, float]], prompt: int):
    assert prompt_listeners([{"continuous": smooth, "ttfb_p95_s": first_s} for smooth, first_s in rows]) == prompt


@pytest.mark.parametrize("page", page_sections(RESULTS), ids=lambda page: page.name)
def test_the_pages_say_what_the_kept_results_say(page, tmp_path):
    copy = tmp_path / page.name
    copy.write_text(page.read_text())
    sections = page_sections(RESULTS)[page]
    assert sections
    write_page(sections, copy)
    assert copy.read_text() == page.read_text(), "python -m scripts.bench summary --readme"
