"""What a request leaves behind: two log lines, one header, and nothing of what it said."""

import contextlib
import importlib.util
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import AtCapacity, ConfigError, EngineDead
from pipeline.types import Admission, FinishReason, Head, Prompt, Segment, StepBlock
from serve.config.app_config import LimitsConfig, TracingConfig
from serve.observability.recent_replies import WINDOW_S, RecentReplies
from serve.observability.reply_stats import Outcome, PlayCursor, ReplyStats
from serve.observability.request_log import FIELDS
from serve.observability.tracing import Tracing, carried, check_tracing
from tests.support.collector import collecting
from tests.support.fakes import CHUNK, RecordingObserver, Speaker, make_services
from tests.support.live_server import Live, serving
from tests.support.waiting import wait_until


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict]:
    records = [getattr(record, FIELDS) for record in caplog.records if hasattr(record, FIELDS)]
    return [fields for fields in records if fields["event"] == event]


def one_out(caplog: pytest.LogCaptureFixture) -> dict:
    wait_until(lambda: lines(caplog, "finished"))  # written after the last byte
    (line,) = lines(caplog, "finished")
    return line


def test_a_request_logs_one_received_and_one_finished_line(live: Live, caplog):
    caplog.set_level(logging.INFO)
    assert live.speak(input="Hello there. And here.", voice="calm", user="canary").status_code == 200
    out = one_out(caplog)
    (come,) = lines(caplog, "received")
    assert come == {
        "event": "received", "request": out["request"], "key": "anonymous", "model": out["model"], "lane": "standard",
        "characters": 22, "container": "pcm", "streamed": True, "latency": "exact",
    }  # fmt: skip
    # The fakes: two segments of 11 and 8 letters, two steps a letter, all ended by themselves.
    assert {key: out[key] for key in ("outcome", "segments", "steps", "ended_by_eos", "queue_s")} == {
        "outcome": "done", "segments": 2, "steps": 38, "ended_by_eos": 2, "queue_s": 0.25,
    }  # fmt: skip
    assert out["audio_s"] == pytest.approx(38 * 512 / 24_000, abs=0.03)
    assert out["vocoder_calls"] >= 2
    assert {"text_s", "gpt_s", "vocoder_s", "ttfb_s", "took_s", "rtf", "stalled_s"} <= out.keys()
    assert out["rtf"] == pytest.approx(out["took_s"] / out["audio_s"], abs=2e-4), "each is rounded to four digits"
    assert json.loads(json.dumps(out)) == out


def test_no_line_holds_a_word_of_the_request(live: Live, caplog):
    caplog.set_level(logging.DEBUG)
    reply = live.speak(input="Canarybird sings.", lexicon={"canarybird": "canary"}, user="canary", speed=1)
    assert reply.status_code == 200
    live.speak(voice="canary-voice")
    live.speak(input="Canary.", speed="canary")
    live.post(b'{"input": "canary', Authorization="Bearer canary-key")
    wait_until(lambda: len(lines(caplog, "finished")) == 4)
    assert "canary" not in caplog.text.lower()
    assert "canary" not in json.dumps([*lines(caplog, "received"), *lines(caplog, "finished")]).lower()


def test_a_refused_request_has_no_line_in_and_no_stages(caplog):
    caplog.set_level(logging.INFO)
    with serving(make_services(Speaker(), LimitsConfig(max_text_chars=5))) as server:
        server_code = server.speak(input="Much too long.").json()["error"]["code"]
        out = one_out(caplog)
    assert lines(caplog, "received") == []
    assert out["outcome"] == "refused"
    assert out["code"] == server_code
    assert "segments" not in out


@pytest.mark.slow
def test_refusals_of_a_full_replica_are_logged_by_their_number(caplog):
    caplog.set_level(logging.INFO)
    services = make_services(Speaker(chunks=None, pause_s=0.01), LimitsConfig(max_in_flight=1))
    with serving(services) as server:
        client = server.connect(b'{"input": "Hello.", "response_format": "pcm"}')
        wait_until(lambda: services.speech.admission.in_flight == 1)
        assert [server.speak().status_code for _ in range(30)] == [429] * 30
        assert lines(caplog, "finished") == []
        wait_until(lambda: sum(line["requests"] for line in lines(caplog, "refused")) == 30)
        assert {line["code"] for line in lines(caplog, "refused")} == {"overloaded"}
        client.close()
        wait_until(lambda: len(lines(caplog, "finished")) == 1)


@pytest.mark.parametrize("stream", [True, False])
def test_the_header_times_every_stage_before_the_first_audio(live: Live, stream: bool):
    timing = live.speak(stream=stream).headers["Server-Timing"]
    stages = dict(re.findall(r"(\w+);dur=([\d.]+)", timing))
    assert list(stages) == ["text", "queue", "gpt", "vocoder", "audio", "encode", "total"]
    assert float(stages["queue"]) == 250.0
    assert float(stages["audio"]) <= float(stages["total"])


@pytest.mark.parametrize("fails_at", [None, 2])
@pytest.mark.parametrize(("fields", "streamed"), [({}, True), ({"stream": False}, False), ({"stream_format": "sse"}, True)])
def test_every_form_of_a_reply_is_measured(fields: dict[str, object], streamed: bool, fails_at: int | None):
    observer = RecordingObserver()
    with serving(make_services(Speaker(fails_at=fails_at, error=EngineDead("gone")), observer=observer)) as server:
        with contextlib.suppress(requests.exceptions.ChunkedEncodingError):
            server.speak(**fields)
        wait_until(lambda: observer.replies)
    (stats,) = observer.replies
    end = "done" if fails_at is None else "cut" if streamed else "refused"
    assert (stats.outcome, stats.code, stats.streamed) == (end, "" if fails_at is None else "engine_dead", streamed)
    assert stats.audio_s == (fails_at or 5) * CHUNK / 24_000


def test_a_broken_body_is_measured_too():
    observer = RecordingObserver()
    with serving(make_services(Speaker(), observer=observer)) as server:
        server.post(b"{")
        wait_until(lambda: observer.replies)
    assert [(stats.outcome, stats.code) for stats in observer.replies] == [("refused", "invalid_json")]


# The play cursor: when a listener would have had to wait; and the last minutes of replies in a few figures.


PIECES = st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 5)), min_size=1, max_size=30)  # (pause before it, its length)


@pytest.mark.parametrize(
    ("arrivals", "stalled_s"),
    [
        ([float(now) for now in range(10)], 0.0),
        ([100.0, 101.5], 0.5),
        ([100.0, 101.5, 102.5], 0.5),
        ([1e6], 0.0),  # the time before the first audio
    ],
)
def test_a_late_piece_of_a_second_stalls_by_its_lateness(arrivals: list[float], stalled_s: float):
    cursor = PlayCursor()
    for now in arrivals:
        cursor.arrived(now, 1.0)
    assert cursor.stalled_s == pytest.approx(stalled_s)


def test_what_is_left_to_play_shrinks_with_the_clock_and_grows_with_each_piece():
    cursor = PlayCursor()
    assert cursor.left_s(5.0) == 0
    cursor.arrived(10.0, 2.0)
    cursor.arrived(10.5, 1.0)
    assert [cursor.left_s(now) for now in (10.5, 12.0, 13.0, 99.0)] == [2.5, 1.0, 0.0, 0.0]


@given(PIECES)
def test_stalls_are_what_playing_took_beyond_the_audio(pieces):
    """A listener who starts at the first piece ends at start + audio + stalls, and never before the last piece came."""
    cursor, now = PlayCursor(), 0.0
    for pause, audio_s in pieces:
        now += pause
        cursor.arrived(now, audio_s)
    start, audio = pieces[0][0], sum(audio_s for _, audio_s in pieces)
    ends = start + audio + cursor.stalled_s
    assert ends >= now + pieces[-1][1] - 1e-6
    assert cursor.stalled_s <= sum(pause for pause, _ in pieces[1:]) + 1e-6


def test_the_last_minutes_are_counted_and_older_ones_forgotten():
    now = 0.0
    observer = RecordingObserver()
    recent = RecentReplies(observer, clock=lambda: now)
    assert recent.summary()["first_audio_s"] is None
    recent.finished(ReplyStats(Outcome.DONE, first_audio_s=9.0, audio_s=1.0))
    now = WINDOW_S
    for first in (0.1, 0.2, 0.3):
        recent.finished(ReplyStats(Outcome.DONE, first_audio_s=first, audio_s=2.0))
    recent.finished(ReplyStats(Outcome.CUT, code="engine_error", first_audio_s=0.4, stalled_s=1.0))
    recent.rejected("overloaded")
    now = WINDOW_S + 1
    assert recent.summary() == {
        "window_s": WINDOW_S,
        "replies": 5,
        "outcomes": {"done": 3, "cut": 1, "refused": 1},
        "errors": {"engine_error": 1, "overloaded": 1},
        "first_audio_s": 0.25,
        "late_first_audio_s": 0.4,
        "stalled": 1,
        "audio_s": 6.0,
    }
    assert len(observer.replies) == 5


# Traces: one a request, across processes, received by a real collector over OTLP.


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
