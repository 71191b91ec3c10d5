"""Several texts in one call: each is a request of its own, and an error in one fails no other."""

import base64

import pytest
import requests

from tests.support.fakes import RecordingObserver, Speaker, make_services
from tests.support.live_server import CANARY, Live, error_of, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def batch(live: Live, **fields: object) -> requests.Response:
    return requests.post(f"{live.url}/v1/audio/speech/batch", json=fields, timeout=60)


def test_each_item_has_the_bytes_it_has_alone():
    observer = RecordingObserver()
    with serving(make_services(Speaker(), observer=observer)) as live:
        items = [{"input": "One.", "seed": 1}, {"input": "Two.", "seed": 2, "response_format": "wav"}, {"input": "", "seed": 3}]
        reply = batch(live, items=items, response_format="pcm")
        told = reply.json()
        assert (told["total"], told["succeeded"], told["failed"]) == (3, 2, 1)
        one, two, wrong = told["results"]
        assert base64.b64decode(one["audio_data"]) == live.speak(input="One.", seed=1, stream=False).content
        assert (
            base64.b64decode(two["audio_data"]) == live.speak(input="Two.", seed=2, stream=False, response_format="wav").content
        )
        assert (two["media_type"], two["seed"]) == ("audio/wav", 2)
        assert (wrong["index"], wrong["status"], wrong["error"]["param"]) == (2, "error", "input")
        wait_until(lambda: len(observer.replies) == 4, 10.0)  # a reply is recorded after its last byte


def test_what_is_no_batch_is_refused():
    with serving(make_services(Speaker(chunks=1))) as live:
        assert error_of(batch(live, items=[]))["param"] == "items"
        assert error_of(batch(live, items=[{"input": "x"}] * 33))["param"] == "items"
        assert error_of(batch(live))["code"] == "missing_field"
        (result,) = batch(live, items=[{"input": CANARY, "voice": "nobody"}]).json()["results"]
        assert result["error"]["code"] == "voice_not_found"
        (result,) = batch(live, items=[{"input": "x", "stream": True}]).json()["results"]
        assert result["error"]["param"] == "stream"
