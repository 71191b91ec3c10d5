"""Chaos, soak and load: what is drawn follows from the seed, and what would be wrong is seen."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.types import AudioChunk, SynthesisRequest
from pipeline.voices.reference import read_reference
from scripts.bench.processes import Usage
from scripts.chaos import load, run
from scripts.chaos import soak as soaking
from scripts.chaos.__main__ import recording
from scripts.chaos.census import TITLES, Census, leaks
from scripts.chaos.faults import FAULTS, schedule
from scripts.chaos.nodes import Front
from serve.config.app_config import LimitsConfig
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving

AT_REST = Census(
    busy={"slots": 0, "in_flight": 0},
    processes=dict.fromkeys(TITLES, 1),
    files=dict.fromkeys(TITLES, 40),
    threads=dict.fromkeys(TITLES, 30),
    memory_mib=dict.fromkeys(TITLES, 100),
    shared_memory=4,
    records={"voices": 9, "jobs": 0},
    zombies=0,
)


@pytest.mark.parametrize("front", Front)
def test_the_plan_follows_from_the_seed_and_every_fault_comes_before_one_comes_again(front: Front):
    plan, faults = schedule(front, 7, 3600, 10, 30), FAULTS[front]
    assert plan == schedule(front, 7, 3600, 10, 30) != schedule(front, 8, 3600, 10, 30)
    names = [name for _, name in plan]
    for first in range(0, len(names) - len(faults), len(faults)):
        assert set(names[first : first + len(faults)]) == set(faults)
    times = [at for at, _ in plan]
    assert times == sorted(times)
    assert times[-1] <= 3600


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"busy": {"slots": 1, "in_flight": 0}}, "1 slots still taken"),
        ({"processes": AT_REST.processes | {"gcs_server": 2}}, "2 processes of gcs_server, 1 before"),
        ({"files": AT_REST.files | {"gcs_server": 400}}, "400 open files of gcs_server, 40 before"),
        ({"threads": AT_REST.threads | {"gcs_server": 300}}, "300 threads of gcs_server, 30 before"),
        ({"records": {"voices": 10, "jobs": 0}}, "records in the store"),
        ({"shared_memory": 40}, "40 files of shared memory, 4 before"),
        ({"zombies": 1}, "1 zombies, 0 before"),
    ],
)
def test_a_leak_is_one_sentence(change: dict, sentence: str):
    assert leaks(AT_REST, AT_REST) == []
    (leak,) = leaks(AT_REST, replace(AT_REST, **change))
    assert sentence in leak


@pytest.mark.slow
def test_the_recording_is_one_of_which_a_voice_can_be_made(tmp_path: Path):
    assert read_reference(recording(tmp_path / "voice.wav")).report.speech_s > 3


SPOKEN = ("stream", "buffered", "events", "slow reader", "leaves")
ALONE = len(SPOKEN) * run.VARIANTS + run.PROBES  # requests that are spoken before there is traffic
RIGHT = 6


@dataclass
class ChangesItsVoice(Speaker):
    """Whose audio is another one after so many requests."""

    same: float = math.inf

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        is_other = self.opened >= self.same
        async for chunk in super().stream(request):
            yield replace(chunk, samples=chunk.samples * 0.5) if is_other else chunk


@pytest.mark.slow
@pytest.mark.parametrize("changes", [False, True])
def test_a_run_ends_with_a_report_in_which_wrong_bytes_are_failures(monkeypatch: pytest.MonkeyPatch, changes: bool):
    monkeypatch.setattr(run, "KINDS", {kind: run.KINDS[kind] for kind in (*SPOKEN, "bad input")})
    monkeypatch.setattr(run, "FAULTS", {Front.PROXY: {"machine lost": lambda nodes, draws: "hit"}})
    monkeypatch.setattr(run, "schedule", lambda *_: [(0.5, "machine lost")])
    monkeypatch.setattr(run.census, "take", lambda nodes: AT_REST)
    monkeypatch.setattr(run.census, "is_at_strength", lambda nodes: True)
    speaker = ChangesItsVoice(chunks=2, same=ALONE + RIGHT if changes else math.inf)
    with serving(make_services(speaker, LimitsConfig(max_in_flight=16))) as live:
        nodes = SimpleNamespace(url=live.url, front=Front.PROXY)
        report = asyncio.run(run.chaos(nodes, 3, 3.0, b"", ""))
    whole = sum(report["by_kind"].get(kind, {}).get("whole", 0) for kind in SPOKEN)
    if changes:  # the first ones are right; who leaves takes a place among them and is not compared
        assert RIGHT - report["ends"]["left"] <= whole <= RIGHT
        assert report["ends"]["wrong"] > RIGHT
    else:
        assert whole > 20
        assert report["ends"]["wrong"] == 0
    assert report["ends"]["refused"]
    assert [hit["hit"] for hit in report["faults"]] == ["hit"]
    assert bool(report["failures"]) == changes, report["failures"]
    assert json.dumps(report)


@pytest.mark.slow
def test_a_soak_goes_on_where_it_was_and_sees_one_wrong_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(soaking, "KINDS", 10)
    monkeypatch.setattr(soaking, "fields", lambda utterance, streamed: {"seed": utterance.seed})
    path = tmp_path / "soak.json"
    speaker = Speaker(chunks=1)
    with serving(make_services(speaker, LimitsConfig(max_in_flight=8))) as live:
        for requests in (30, 60):
            state = soaking.read_state(path)
            asyncio.run(soaking.soak(live.url, state, requests, 60.0, path))
        state = soaking.read_state(path)
        assert (state.done, len(state.twins), state.wrong, state.failed) == (60, 10, [], [])
        assert speaker.opened >= 60 + 10, "each one, and a twin of each kind"
        state.twins["3"] = "0" * 64
        asyncio.run(soaking.soak(live.url, state, 70, 60.0, path))
    assert [line.partition(",")[0] for line in state.wrong] == ["kind 3"]
    figures = soaking.summary(state)
    assert (figures["requests"], figures["kinds"], figures["wrong"], figures["failed"]) == (70, 10, 1, 0)


@pytest.mark.parametrize(("growth", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_drift_is_growth_of_all_memory_in_an_hour_after_the_first(growth: float, expected: float):
    """`growth` in percent of 1000 MiB an hour; the first hour, which may grow, does not count."""
    samples = [
        {"at_s": at, "rss_mib": {"a": 500.0, "b": 500.0 + growth * 10 * (at - 7200) / 3600 if at >= 3600 else 1.0}}
        for at in range(0, 10_801, 60)
    ]
    drift = soaking.drift_percent_an_hour(soaking.State(samples=samples), 3600)
    assert drift == pytest.approx(expected, abs=0.02)
    assert soaking.drift_percent_an_hour(soaking.State(samples=samples[:5]), 3600) is None


def test_a_summary_has_the_sums_after_a_minute_and_at_the_end():
    sums = [(0, 1.0), (60, 10.0), (120, 30.0), (180, 20.0)]
    samples = [{"at_s": at, **{name: {"a": sum_ / 2, "b": sum_ / 2} for name in Usage._fields}} for at, sum_ in sums]
    figures = soaking.summary(soaking.State(samples=samples, seconds=180.0))
    assert figures["files"] == figures["rss_mib"] == figures["threads"] == {"after_a_minute": 10, "last": 20, "most": 30}
    assert (figures["hours"], figures["memory_percent_an_hour_after_the_first"]) == (0.05, None)


def test_a_service_that_was_started_anew_is_not_compared_with_the_one_before():
    def watched(process: str, began: int, seconds: int, size: float) -> list[dict]:
        return [
            {"at_s": at, **{name: {process: size * (1 + (at - began) / 360_000)} for name in Usage._fields}}
            for at in range(began, began + seconds + 1, 60)
        ]

    samples = [*watched("a 1", 0, 600, 500.0), *watched("a 2", 700, 7200, 1000.0), *watched("a 3", 8000, 300, 700.0)]
    figures = soaking.summary(soaking.State(samples=samples))
    assert figures["rss_mib"] == {"after_a_minute": 1000, "last": 1020, "most": 1020}
    assert figures["memory_percent_an_hour_after_the_first"] == pytest.approx(1.0, abs=0.02)
    assert soaking.of_longest_service([]) == []


@pytest.mark.slow
def test_loads_count_answers_refusals_and_open_sockets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load, "ANSWERS", 16)
    monkeypatch.setattr(load, "REST_S", 0.1)
    with serving(make_services(Speaker(chunks=2, pause_s=0.2), LimitsConfig(max_in_flight=8))) as live:
        overload = asyncio.run(load.overload(live.url, times=10, seconds=2, seed=1))
        idle = asyncio.run(load.idle_sockets(live.url, 100, seconds=0.1))
    assert overload["heard"] + sum(overload["refused"].values()) + overload["no_answer"] == overload["requests"] > 50
    assert set(overload["refused"]) == {"429"}
    assert overload["refused_in_our_envelope"] == overload["refused"]["429"] > overload["heard"] > 0
    assert 0 < overload["refusal_p50_ms"] <= overload["refusal_p95_ms"]
    assert overload["cut"] == 0
    assert overload["cores"]["clients"]["running"] > 0
    assert (idle["asked"], idle["opened"], idle["held"], idle["beside"]) == (100, 100, 100, {"200": load.PROBES})


@pytest.mark.slow
def test_bursts_and_slow_readers_share_the_places(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load, "REST_S", 0.1)
    with serving(make_services(Speaker(chunks=3, pause_s=0.2), LimitsConfig(max_in_flight=2))) as live:
        burst = asyncio.run(load.burst(live.url, 12, rounds=1))
        slow = asyncio.run(load.slow_readers(live.url, 6, seconds=2))
    assert burst["statuses"] == {"200": 2, "429": 10}
    assert slow["statuses"] == {"200": 2, "429": 4}
