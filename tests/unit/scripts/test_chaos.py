"""Soak and load: a soak goes on where it was, what would be wrong is seen, and refusals are told from audio."""

import asyncio
from pathlib import Path

import pytest

from scripts.chaos import load
from scripts.chaos import soak as soaking
from scripts.chaos.load import Target, burst, slow_readers
from serve.config.app_config import LimitsConfig
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving


@pytest.mark.slow
def test_a_soak_goes_on_where_it_was_and_sees_one_wrong_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(soaking, "KINDS", 10)
    monkeypatch.setattr(soaking, "request_of", lambda kind: {"input": "One.", "seed": kind, "response_format": "pcm"})
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
    soaking.plot(state, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 1000


@pytest.mark.parametrize(("growth", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_drift_is_growth_of_all_memory_in_an_hour_after_the_first(growth: float, expected: float):
    """`growth` in percent of 1000 MiB an hour; the first hour, which may grow, does not count."""
    samples = [
        {"at_s": at, "rss_mib": {"a": 500.0, "b": 500.0 + growth * 10 * (at - 7200) / 3600 if at >= 3600 else 1.0}}
        for at in range(0, 10_801, 60)
    ]
    found = soaking.drift_percent_an_hour(soaking.State(samples=samples), 3600)
    assert found == pytest.approx(expected, abs=0.02)
    assert soaking.drift_percent_an_hour(soaking.State(samples=samples[:5]), 3600) is None


@pytest.mark.slow
def test_an_overload_counts_what_is_heard_and_what_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load, "MEASURE_S", 1.0)
    with serving(make_services(Speaker(chunks=2, pause_s=0.2), LimitsConfig(max_in_flight=8))) as live:
        found = asyncio.run(load.overload(Target(live.url), times=10, seconds=2, seed=1))
        idle = asyncio.run(load.idle_sockets(Target(live.url), 100))
    assert found["heard"] + sum(found["refused"].values()) + found["no_answer"] == found["requests"] > 50
    assert set(found["refused"]) == {"429"}
    assert found["refused_in_our_envelope"] == found["refused"]["429"] > found["heard"] > 0
    assert (found["cut"], found["promises_kept"]) == (0, 1.0)
    assert idle["asked"] == 100 > 0
    assert idle["held"] > 0


@pytest.mark.slow
def test_a_burst_and_slow_readers_are_told_from_each_other():
    with serving(make_services(Speaker(chunks=3, pause_s=0.2), LimitsConfig(max_in_flight=2))) as live:
        found = asyncio.run(burst(Target(live.url), 12, rounds=1))
        assert found["statuses"] == {"200": 2, "429": 10}
        assert 0 < found["refusal_p50_ms"] <= found["refusal_p95_ms"]
        slow = asyncio.run(slow_readers(Target(live.url), 6, seconds=2))
        assert slow["statuses"] == {"200": 2, "429": 4}
