"""Every reply is measured, however it ends."""

import pytest
import requests

from pipeline.errors import AtCapacity, EngineDead
from serve.config.app_config import LimitsConfig
from serve.observability.reply_stats import Outcome, ReplyStats
from tests.support.fakes import CHUNK, RecordingObserver, Speaker, make_services
from tests.support.live_server import Live, serving
from tests.support.waiting import wait_until

SAMPLE_RATE = 24_000


def only(observer: RecordingObserver) -> ReplyStats:
    wait_until(lambda: observer.replies)
    (stats,) = observer.replies
    return stats


def watched(speaker: Speaker, limits: LimitsConfig | None = None):
    observer = RecordingObserver()
    return serving(make_services(speaker, limits, observer=observer)), observer


@pytest.mark.parametrize(("fields", "streamed"), [({}, True), ({"stream": False}, False), ({"stream_format": "sse"}, True)])
def test_a_completed_reply_is_measured(fields, streamed):
    server, observer = watched(Speaker(chunks=5, first_pause_s=0.05))
    with server as live:
        assert live.speak(**fields).status_code == 200
        stats = only(observer)
    assert stats.outcome is Outcome.DONE
    assert stats.code == ""
    assert stats.streamed is streamed
    assert stats.audio_s == 5 * CHUNK / SAMPLE_RATE
    assert 0.05 <= stats.first_audio_s <= stats.took_s
    assert stats.characters == len("Hello there.")
    assert stats.stalled_s == 0


@pytest.mark.slow
def test_a_pause_longer_than_the_audio_so_far_is_a_stall():
    server, observer = watched(Speaker(chunks=3, pause_s=0.4))
    with server as live:
        live.speak()
        assert only(observer).stalled_s > 0.3


@pytest.mark.parametrize("error", [AtCapacity("full", retry_after_s=2.0), EngineDead("gone")])
def test_a_refusal_is_counted_by_its_code(error):
    server, observer = watched(Speaker(fails_at=0, error=error))
    with server as live:
        code = live.speak().json()["error"]["code"]
        stats = only(observer)
    assert (stats.outcome, stats.code, stats.audio_s) == (Outcome.REFUSED, code, 0)
    assert stats.first_audio_s is None


def test_a_refusal_of_a_full_replica_is_counted():
    server, observer = watched(Speaker(chunks=None, pause_s=0.01), LimitsConfig(max_in_flight=1))
    with server as live:
        client = live.connect(b'{"input": "Hello.", "response_format": "pcm"}')
        wait_until(lambda: live.services.speech.admission.in_flight == 1)
        assert live.speak().status_code == 429
        assert only(observer).outcome is Outcome.REFUSED
        client.close()


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}])
def test_a_failure_after_the_first_audio_is_a_cut(fields):
    server, observer = watched(Speaker(fails_at=2, error=EngineDead("gone")))
    with server as live:
        cut(live, fields)
        stats = only(observer)
    assert (stats.outcome, stats.code) == (Outcome.CUT, "engine_dead")
    assert stats.audio_s == 2 * CHUNK / SAMPLE_RATE


def cut(live: Live, fields) -> None:
    try:
        live.speak(**fields)
    except requests.exceptions.ChunkedEncodingError:
        return


def test_a_client_that_leaves_is_counted_as_such():
    server, observer = watched(Speaker(chunks=None, pause_s=0.01))
    with server as live:
        client = live.connect(b'{"input": "Hello.", "response_format": "pcm"}')
        client.recv(1000)
        client.close()
        assert only(observer).outcome is Outcome.LEFT


def test_a_broken_body_is_counted_too():
    server, observer = watched(Speaker())
    with server as live:
        live.post(b"{")
        assert (only(observer).outcome, only(observer).code) == (Outcome.REFUSED, "invalid_json")


def test_the_number_inside_goes_up_and_comes_back():
    server, observer = watched(Speaker())
    with server as live:
        live.speak()
        only(observer)
    assert observer.in_flight == [1, 0]
