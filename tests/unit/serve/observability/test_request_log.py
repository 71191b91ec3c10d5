"""What a request leaves behind: two log lines, one header, and nothing of what it said."""

import contextlib
import json
import logging
import re

import pytest
import requests

from pipeline.errors import EngineDead
from serve.config.app_config import LimitsConfig
from serve.observability.request_log import FIELDS
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
