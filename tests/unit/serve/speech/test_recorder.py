"""Every reply is measured, however it ends."""

import pytest
import requests

from pipeline.errors import AtCapacity, EngineDead
from serve.config.app_config import LimitsConfig
from serve.observability.reply_stats import Outcome, ReplyStats
from tests.support.fakes import CHUNK, Speaker, make_services
from tests.support.live_server import Live, serving
from tests.support.waiting import wait_until

SAMPLE_RATE = 24_000


class Book:
    """A ReplyObserver that writes everything down."""

    def __init__(self) -> None:
        self.figures: list[ReplyStats] = []
        self.seen: list[int] = []

    def finished(self, figures: ReplyStats) -> None:
        self.figures.append(figures)

    def in_flight_changed(self, in_flight: int) -> None:
        self.seen.append(in_flight)

    def only(self) -> ReplyStats:
        wait_until(lambda: self.figures)
        (figures,) = self.figures
        return figures


def watched(speaker: Speaker, limits: LimitsConfig | None = None):
    book = Book()
    return serving(make_services(speaker, limits, observer=book)), book


@pytest.mark.parametrize(("fields", "streamed"), [({}, True), ({"stream": False}, False), ({"stream_format": "sse"}, True)])
def test_a_spoken_reply_says_how_it_went(fields, streamed):
    server, book = watched(Speaker(chunks=5, first_pause_s=0.05))
    with server as live:
        assert live.speak(**fields).status_code == 200
        figures = book.only()
    assert figures.outcome is Outcome.DONE
    assert figures.code == ""
    assert figures.streamed is streamed
    assert figures.audio_s == 5 * CHUNK / SAMPLE_RATE
    assert 0.05 <= figures.first_audio_s <= figures.took_s
    assert figures.characters == len("Hello there.")
    assert figures.stalled_s == 0


def test_a_pause_longer_than_the_audio_so_far_is_a_stall():
    server, book = watched(Speaker(chunks=3, pause_s=0.4))
    with server as live:
        live.speak()
        assert book.only().stalled_s > 0.3


@pytest.mark.parametrize("error", [AtCapacity("full", retry_after_s=2.0), EngineDead("gone")])
def test_a_refusal_is_counted_by_its_code(error):
    server, book = watched(Speaker(fails_at=0, error=error))
    with server as live:
        code = live.speak().json()["error"]["code"]
        figures = book.only()
    assert (figures.outcome, figures.code, figures.audio_s) == (Outcome.REFUSED, code, 0)
    assert figures.first_audio_s is None


def test_a_full_house_is_counted():
    server, book = watched(Speaker(chunks=None, pause_s=0.01), LimitsConfig(max_in_flight=1))
    with server as live:
        client = live.connect(b'{"input": "Hello.", "response_format": "pcm"}')
        wait_until(lambda: live.services.speech.admission.in_flight == 1)
        assert live.speak().status_code == 429
        assert book.only().outcome is Outcome.REFUSED
        client.close()


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}])
def test_a_failure_after_the_first_audio_is_a_cut(fields):
    server, book = watched(Speaker(fails_at=2, error=EngineDead("gone")))
    with server as live:
        cut(live, fields)
        figures = book.only()
    assert (figures.outcome, figures.code) == (Outcome.CUT, "engine_dead")
    assert figures.audio_s == 2 * CHUNK / SAMPLE_RATE


def cut(live: Live, fields) -> None:
    try:
        live.speak(**fields)
    except requests.exceptions.ChunkedEncodingError:
        return


def test_a_client_that_leaves_is_counted_as_such():
    server, book = watched(Speaker(chunks=None, pause_s=0.01))
    with server as live:
        client = live.connect(b'{"input": "Hello.", "response_format": "pcm"}')
        client.recv(1000)
        client.close()
        assert book.only().outcome is Outcome.LEFT


def test_a_broken_body_is_counted_too():
    server, book = watched(Speaker())
    with server as live:
        live.post(b"{")
        assert (book.only().outcome, book.only().code) == (Outcome.REFUSED, "invalid_json")


def test_the_number_inside_goes_up_and_comes_back():
    server, book = watched(Speaker())
    with server as live:
        live.speak()
        book.only()
    assert book.seen == [1, 0]
