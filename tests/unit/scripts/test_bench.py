"""The benchmarks' arithmetic: what is asked, what a listener notices, what a figure is made of."""

import asyncio
import math
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import PipelineConfig, TextConfig
from pipeline.spec import SAMPLE_RATE, STEPS_PER_SECOND
from pipeline.text.frontend import LocalTextFrontend
from pipeline.types import SynthesisRequest, Voice
from pipeline.voices.catalogue import DEFAULT
from pipeline.yaml_loader import parse_yaml
from scripts.bench.__main__ import options_of, parse
from scripts.bench.bench import MAX_PROMPT, MAX_STEPS
from scripts.bench.load import Load, Refused, drive
from scripts.bench.settings import document, from_zero
from scripts.bench.timeline import Timeline, audio_rate, failures, latency, percentile, spread
from scripts.bench.workload import TEXT, Lengths, Utterance, poisson, random_of, utterance, utterances
from serve.config.config_file import find_mistakes
from tests.support.pages import PAGES


@pytest.fixture(scope="module")
def frontend(demo_root: Path) -> LocalTextFrontend:
    """The service's own, with the numbers it is measured with."""
    return LocalTextFrontend(demo_root, TextConfig.model_validate(TEXT), max_prompt=MAX_PROMPT, max_steps=MAX_STEPS)


@given(st.floats(0.1, 25.0), st.integers(0, 2**32))
def test_a_text_speaks_as_long_as_it_is_asked_to(frontend: LocalTextFrontend, audio_s: float, number: int):
    one = utterance(audio_s, number)
    request = SynthesisRequest(request_id="", text=one.text, voice=DEFAULT)
    (prompt,) = asyncio.run(frontend.plan(request, {DEFAULT: Voice(DEFAULT, None)})).prompts
    assert prompt.max_steps == one.steps
    assert abs(one.audio_s - audio_s) <= 1.5 / STEPS_PER_SECOND + 1e-9


def test_texts_are_unique_and_the_same_every_time():
    asked = utterances(200, Lengths(), 1, "b3")
    assert asked == utterances(200, Lengths(), 1, "b3")
    assert len({one.text for one in asked}) == len({one.seed for one in asked}) == 200
    assert asked != utterances(200, Lengths(), 2, "b3")


def test_lengths_follow_the_stated_distribution():
    lengths = Lengths(median_s=4.0, sigma=0.6, shortest_s=0.8, longest_s=25.0)
    drawn = np.array([lengths.draw(random_of("lengths", index)) for index in range(2000)])
    assert drawn.min() >= 0.8
    assert drawn.max() <= 25.0
    assert np.median(drawn) == pytest.approx(4.0, rel=0.06)
    assert np.log(drawn).std() == pytest.approx(0.6, rel=0.06)


def test_arrivals_are_poisson():
    times = poisson(5.0, 400.0, "arrivals")
    gaps = np.diff(times)
    assert all(earlier < later for earlier, later in pairwise(times))
    assert times[-1] < 400.0
    assert len(times) == pytest.approx(2000, rel=0.08)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.08), "an exponential's deviation is its mean"
    assert times == poisson(5.0, 400.0, "arrivals")


def heard(*pieces: tuple[float, float], **fields: object) -> Timeline:
    """A complete answer of (when, seconds of audio) pieces."""
    arrivals = [(when, round(seconds * SAMPLE_RATE)) for when, seconds in pieces]
    line = Timeline(0, sum(seconds for _, seconds in pieces), 0.0, status=200, arrivals=arrivals, complete=True)
    line.ended_s = pieces[-1][0]
    return replace(line, **fields)


def test_underruns_are_what_a_player_notices():
    assert heard((1.0, 0.5), (1.4, 0.5), (2.0, 0.5)).stalls_s() == [], "each came before the last was played"
    assert heard((1.0, 0.5), (1.75, 0.5), (3.0, 1.0)).stalls_s() == pytest.approx([0.25, 0.75])
    assert heard((9.0, 0.5)).stalls_s() == [], "waiting for the first piece is no underrun"


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(0.01, 2.0)), min_size=1, max_size=20))
def test_playing_ends_after_all_audio_and_all_stalls(pieces: list[tuple[float, float]]):
    now, placed = 0.0, []
    for gap, seconds in pieces:
        now += gap
        placed.append((now, seconds))
    line = heard(*placed)
    assert sum(line.stalls_s()) <= line.arrivals[-1][0] - line.arrivals[0][0] + 1e-9
    played_until = line.arrivals[0][0] + line.received_s + sum(line.stalls_s())
    assert played_until >= line.arrivals[-1][0] + line.arrivals[-1][1] / SAMPLE_RATE - 1e-6, "nothing is played before it came"


def test_an_answer_nobody_measured_is_not_continuous():
    assert heard((1.0, 0.5), (1.5, 0.5)).is_continuous
    assert heard((1.0, 0.5), (1.55, 0.5)).is_continuous, "50 ms are not heard"
    assert not heard((1.0, 0.5), (1.75, 0.5)).is_continuous
    assert not heard((1.0, 0.5), complete=False).is_continuous
    assert not Timeline(0, 1.0, 0.0, complete=True).is_continuous


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50), st.floats(0, 100))
def test_a_percentile_is_a_value_that_enough_others_do_not_exceed(values: list[float], percent: float):
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9


def test_there_is_no_percentile_of_nothing():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_rate_counts_what_was_heard_by_the_last_wanted_completion():
    first, second = heard((1.0, 2.0), ended_s=2.0), heard((3.0, 2.0), ended_s=4.0)
    late = heard((3.5, 0.5), (5.0, 4.0), ended_s=6.0)
    assert audio_rate([first, second, late], 2) == pytest.approx((2.0 + 2.0 + 0.5) / 4.0)
    with pytest.raises(ValueError, match="not 3"):
        audio_rate([first, second], 3)


def test_failures_are_neither_refusals_nor_leaving():
    refused, left = Timeline(0, 1.0, 0.0, status=429), Timeline(1, 1.0, 0.0, status=200, left=True)
    broken, cut = Timeline(2, 1.0, 0.0, error="OSError: gone"), Timeline(3, 1.0, 0.0, status=200)
    assert failures([refused, left, heard((1.0, 1.0))]) == []
    assert failures([broken, cut]) == ["OSError: gone", "incomplete answer, status 200"]


def test_latency_is_of_complete_answers():
    lines = [heard((1.0, 0.5), (1.2, 0.5)), heard((2.0, 0.5), (2.75, 0.5)), Timeline(2, 1.0, 0.0, status=429)]
    figures = latency(lines)
    assert figures["answers"] == 2
    assert figures["ttfb_p50_s"] == 1.0
    assert figures["ttfb_p95_s"] == 2.0
    assert figures["underruns"] == 1
    assert figures["continuous"] == 0.5
    assert math.isnan(figures["audible_p50_s"]), "silence was never heard"


def test_a_spread_is_median_least_and_greatest():
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}


class Speaker:
    """Speaks at once: a second of noise in two pieces, the second one cut within a sample."""

    def __init__(self) -> None:
        self.inside = self.most = self.left = 0

    async def speak(self, what: Utterance, streamed: bool, sent):
        if what.seed == 429:
            raise Refused(429, 2.0)
        sent()
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(0.01)
            yield b"\x00\x40" * 12_000 + b"\x00"
            await asyncio.sleep(0.01)
            yield b"\x40" + b"\x00\x40" * 11_999
        except GeneratorExit:
            self.left += 1
            raise
        finally:
            self.inside -= 1


def one(number: int, **fields: object) -> Utterance:
    return replace(Utterance("text", 47, number), **fields)


def test_a_closed_loop_keeps_so_many_in_flight():
    speaker = Speaker()
    lines = asyncio.run(drive(Load(tuple(map(one, range(9))), clients=3), speaker.speak))
    assert speaker.most == 3
    assert all(line.complete and line.received_s == 1.0 and line.audible_s is not None for line in lines)
    assert len({line.md5 for line in lines}) == 1
    assert failures(lines) == []


def test_a_listener_plays_an_answer_to_its_end_before_the_next_request():
    first, second = asyncio.run(drive(Load((one(1), one(2)), clients=1, in_real_time=True), Speaker().speak))
    assert first.played_s >= first.arrivals[0][0] + first.received_s
    assert second.sent_s >= first.played_s
    refused, answered = asyncio.run(drive(Load((one(429), one(1)), clients=1, in_real_time=True), Speaker().speak))
    assert refused.played_s == refused.ended_s, "nothing to play, nothing to wait for"
    assert answered.complete


def test_a_load_ends_with_the_last_wanted_completion():
    speaker = Speaker()
    lines = asyncio.run(drive(Load(tuple(map(one, range(100))), clients=4, completions=8), speaker.speak))
    assert sum(line.complete for line in lines) >= 8
    assert all(line.complete or line.left for line in lines)
    assert len(lines) < 20
    assert speaker.inside == 0, "every stream was closed"


def test_an_open_loop_waits_for_nobody():
    speaker = Speaker()
    began = time.perf_counter()
    lines = asyncio.run(drive(Load(tuple(map(one, range(5))), arrivals_s=(0.0,) * 5), speaker.speak))
    assert speaker.most == 5
    assert len(lines) == 5
    assert time.perf_counter() > began
    with pytest.raises(ValueError, match="1 arrivals for 2"):
        Load((one(1), one(2)), arrivals_s=(0.0,))


def test_refusals_leaving_and_failures_are_told_apart():
    async def broken(what: Utterance, streamed: bool, sent):
        yield b"\x00\x40"
        raise OSError("gone")

    speaker = Speaker()
    (refused,) = asyncio.run(drive(Load((one(429),), clients=1), speaker.speak))
    assert (refused.status, refused.retry_after_s, refused.complete) == (429, 2.0, False)
    (left,) = asyncio.run(drive(Load((one(1, leaves_after=0.3),), clients=1), speaker.speak))
    assert left.left
    assert speaker.left == 1
    (cut,) = asyncio.run(drive(Load((one(1),), clients=1), broken))
    assert (cut.complete, cut.error) == (False, "OSError: gone")


CONFIGS = Path(__file__).resolve().parents[3] / "configs"


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
        (["--url", "http://x", "--device", "cuda"], "has no effect"),
    ],
)
def test_a_device_that_the_service_would_not_have_is_refused(capsys, arguments, why):
    with pytest.raises(SystemExit):
        parse(["b2", *arguments])
    assert why in capsys.readouterr().err


def test_a_configuration_of_any_device_needs_the_devices_name(tmp_path, capsys):
    config = tmp_path / "auto.yaml"
    config.write_text((CONFIGS / "gpu.yaml").read_text().replace("device: cuda", "device: auto"))
    assert parse(["b1", "--config", str(config), "--device", "cuda"]).device == "cuda"
    with pytest.raises(SystemExit):
        parse(["b1", "--config", str(config)])
    assert "--device cpu or --device cuda" in capsys.readouterr().err


def test_a_service_that_sleeps_is_configured_as_the_page_shows_it():
    options = options_of(parse(["b11"]))
    sleeping = document(replace(options.demo_settings, sleeps_after_s=600), 8000, None)
    assert not find_mistakes(sleeping)
    (application,) = sleeping["applications"]
    scaled = {one["name"]: one.get("autoscaling_config") for one in application["deployments"]}
    assert scaled == {"Ingress": None} | dict.fromkeys(("TextNormalizer", "AcousticModel", "Vocoder"), from_zero(600))
    shown = parse_yaml(re.findall(r"```yaml\n(autoscaling_config:.*?)```", PAGES["docs/ray.md"], re.DOTALL)[0])[
        "autoscaling_config"
    ]
    assert shown == from_zero(600)
