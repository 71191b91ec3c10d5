"""Traces: one a request, across processes, received by a real collector over OTLP."""

import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import AtCapacity, ConfigError
from pipeline.types import Admission, FinishReason, Head, Prompt, Segment, StepBlock
from serve.config.app_config import TracingConfig
from serve.observability.tracing import Tracing, carried, check_tracing
from tests.support.collector import collecting

CLIENTS = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"  # its own sampling says no
PROMPT = Prompt(np.zeros((12, 4), np.int64), np.ones(12, np.bool_), Head.CODE, Segment("canary", 2, True), max_steps=9)
Start = Callable[[TracingConfig, str], Tracing]


@pytest.fixture
def tracing() -> Iterator[Start]:
    """Starts the tracing of a stage, which ends with the test."""
    with contextlib.ExitStack() as open_ones:

        def start(config: TracingConfig, stage: str) -> Tracing:
            return open_ones.enter_context(contextlib.closing(Tracing(config, stage, "r1")))

        yield start


def block(steps: int, finish: FinishReason | None = None, admission: Admission | None = None) -> StepBlock:
    return StepBlock(np.zeros((steps, 8), np.float32), np.zeros((steps, 4), np.int64), 0, finish, admission)


def test_one_trace_a_request_across_the_stages(tracing: Start):
    with collecting() as collector:
        config = TracingConfig(exporter="otlp", endpoint=collector.endpoint)
        ingress, acoustic, vocoder = (tracing(config, stage) for stage in ("Ingress", "AcousticModel", "Vocoder"))
        with ingress.request("r-1", None) as span:
            handed = carried()
            with acoustic.generation(handed, PROMPT) as took:
                took(block(4, admission=Admission(waited_s=0.5, prefill_s=0.25)))
                took(block(3, FinishReason.EOS))
            with vocoder.within(handed, "vocoder.call", {"steps": 7}):
                pass
            span.set_attributes({"outcome": "done"})
        assert carried() == "", "outside of a request nothing is handed on"
        for stage in (ingress, acoustic, vocoder):
            stage.close()
        spans = {span.name: span for span in collector.spans()}
        assert {span.trace_id for span in spans.values()} == {spans["speech"].trace_id}
        tree = {name: next((p.name for p in spans.values() if p.span_id == s.parent_id), "") for name, s in spans.items()}
        assert tree == {
            "speech": "",
            "acoustic.generate": "speech",
            "queue": "acoustic.generate",
            "prefill": "acoustic.generate",
            "first_steps": "acoustic.generate",
            "vocoder.call": "speech",
        }
        assert {name: span.stage for name, span in spans.items() if "." in name or name == "speech"} == {
            "speech": "Ingress", "acoustic.generate": "AcousticModel", "vocoder.call": "Vocoder",
        }  # fmt: skip
        assert spans["speech"].attributes == {"request": "r-1", "outcome": "done"}
        generated = spans["acoustic.generate"].attributes
        assert generated == {"segment": 2, "positions": 12, "head": "code", "steps": 7, "finish": "eos"}
        assert spans["queue"].ended_ns - spans["queue"].began_ns == 500_000_000
        assert spans["prefill"].ended_ns - spans["prefill"].began_ns == 250_000_000
        assert b"canary" not in b"".join(collector.bodies)


def test_a_clients_trace_is_continued_and_its_sampling_is_not_obeyed(tracing: Start):
    with collecting() as collector:
        config = TracingConfig(exporter="otlp", endpoint=collector.endpoint)
        ingress = tracing(config, "Ingress")
        for traceparent in (CLIENTS, "nonsense", None):
            with ingress.request("r", traceparent):
                pass
        ingress.close()
        continued, *fresh = collector.spans()
        assert (continued.trace_id, continued.parent_id) == tuple(CLIENTS.split("-")[1:3])
        assert all(span.parent_id == "" for span in fresh)
        assert len({span.trace_id for span in (continued, *fresh)}) == 3


def test_what_the_ingress_does_not_sample_no_stage_traces(tracing: Start):
    with collecting() as collector:
        config = TracingConfig(exporter="otlp", endpoint=collector.endpoint, sample_ratio=0)
        ingress, vocoder = tracing(config, "Ingress"), tracing(config, "Vocoder")
        with ingress.request("r", CLIENTS[:-1] + "1"):
            assert carried() == ""
            with vocoder.within(carried(), "vocoder.call"):
                pass
        ingress.close()
        vocoder.close()
        assert collector.bodies == []


def test_off_costs_nothing_and_hands_nothing_on():
    tracing = Tracing()
    with tracing.request("r", CLIENTS) as span:
        assert not span.is_recording()
        with tracing.generation(carried(), PROMPT) as took:
            took(block(1, admission=Admission(0.1, 0.1)))


def test_a_failed_stage_records_the_kind_of_error_alone(tmp_path: Path):
    tracing = Tracing(TracingConfig(exporter="file", folder=str(tmp_path)), "Ingress", "r")
    with tracing.request("r", None), pytest.raises(AtCapacity), tracing.within(carried(), "text.plan"):
        raise AtCapacity("canary is in the message", retry_after_s=1)
    tracing.close()
    (file,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["name"] for line in lines] == ["text.plan", "speech"]
    assert lines[0]["attributes"] == {"error.type": "AtCapacity"}
    assert "canary" not in file.read_text()


@pytest.mark.slow
def test_a_collector_that_does_not_answer_delays_no_request():
    with collecting() as collector:
        collector.answers.clear()
        tracing = Tracing(TracingConfig(exporter="otlp", endpoint=collector.endpoint), "Ingress")
        for _ in range(5000):  # more than the queue holds
            with tracing.request("r", None):
                pass
        assert collector.bodies == [], "every request was over before one export was"
        collector.answers.set()
        tracing.close()
        assert 0 < len(collector.spans()) < 5000


def test_a_missing_package_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"chattts-serve\[tracing\]"):
        check_tracing(TracingConfig(exporter="otlp"))
    check_tracing(TracingConfig(exporter="file"))
    check_tracing(TracingConfig())
