"""What a request leaves behind: two log lines, one header, and nothing of what it said."""

import json
import logging

import pytest

from pipeline.errors import EngineFault
from serve.config.app_config import LimitsConfig
from serve.observability.request_log import FIELDS
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import Live, serving
from tests.support.waiting import wait_until


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict]:
    found = [getattr(record, FIELDS) for record in caplog.records if hasattr(record, FIELDS)]
    return [fields for fields in found if fields["event"] == event]


def one_out(caplog: pytest.LogCaptureFixture) -> dict:
    wait_until(lambda: lines(caplog, "finished"))  # written after the last byte
    (line,) = lines(caplog, "finished")
    return line


def test_one_line_in_and_one_out_with_what_the_stages_did(live: Live, caplog):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speaker", "outcome", "code"),
    [
        (Speaker(fails_at=0, error=EngineFault("x")), "refused", "engine_error"),
        (Speaker(fails_at=2, error=EngineFault("x")), "cut", "engine_error"),
    ],
)
def test_whatever_fails_is_out_once_with_its_code(speaker: Speaker, outcome: str, code: str, caplog):
    caplog.set_level(logging.INFO)
    with serving(make_services(speaker)) as server:
        client = server.connect(b'{"input": "Hello.", "response_format": "pcm"}')
        while client.recv(65536):
            pass
        out = one_out(caplog)
    assert (out["outcome"], out["code"]) == (outcome, code)
    assert ("ttfb_s" in out) == (outcome == "cut")


def test_a_client_that_leaves_is_logged_as_left(caplog):
    caplog.set_level(logging.INFO)
    with serving(make_services(Speaker(chunks=None, pause_s=0.01))) as server:
        client = server.connect(b'{"input": "Hello.", "response_format": "pcm"}')
        client.recv(1000)
        client.close()
        assert one_out(caplog)["outcome"] == "left"


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
