"""Takes that swallow words are spoken again on request: bounded, from the request alone, however the reply is sent."""

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import openai
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.checkpoint.capabilities import read_capabilities
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.config import PipelineConfig
from serve.config.app_config import LimitsConfig
from serve.config.model_versions import versions_of
from serve.resilience.rollout import Rollout
from serve.speech.model_selection import ModelSelector
from tests.support.demo_voice import Deaf, demo_speaker
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import Live, serving

pytestmark = pytest.mark.slow

ASKED = {"input": "That was a great answer.", "seed": 1}


@contextmanager
def taught(deaf_takes: int) -> Iterator[Live]:
    """Serves the demo voice, of whose takes the first ones are taken for incomplete."""
    rollout = Rollout(versions_of(PipelineConfig(), {}))
    models = ModelSelector(rollout, dict.fromkeys(rollout.versions, read_capabilities(DEMO_FOLDER)))
    with (
        demo_speaker(lambda follower: Deaf(follower, deaf_takes)) as speaker,
        serving(make_services(speaker, models=models)) as live,
    ):
        yield live


def test_the_bytes_of_a_take_that_is_spoken_again_follow_from_the_request():
    with taught(deaf_takes=1) as live:
        plain = live.speak(**ASKED, stream=False)
        assert "X-Coverage" not in plain.headers
        poor = live.speak(**ASKED, stream=False, timestamps="word")
        assert poor.headers["X-Coverage"] == "0.0000; words=5, swallowed=5, repeated=0"
        again = live.speak(**ASKED, stream=False, retries=2)
        assert (again.headers["X-Coverage"], again.headers["X-Text-Warnings"], again.headers["X-Cache"]) == (
            "1.0000; words=5, swallowed=0, repeated=0",
            "1; retried=1",
            "miss",
        )
        assert again.content != plain.content
        repeated = live.speak(**ASKED, stream=False, retries=2)
        assert (repeated.headers["X-Cache"], repeated.headers["X-Coverage"]) == ("hit", again.headers["X-Coverage"])
        streamed = live.speak(**ASKED, retries=2)
        assert "X-Coverage" not in streamed.headers, "it is known at the end"
        fresh = live.speak(**ASKED, retries=2, cache="no-store")
        assert [reply.content == again.content for reply in (repeated, streamed, fresh)] == [True] * 3
        lines = live.speak(**ASKED, retries=1, stream_format="sse").text.splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == again.content
        assert (events[-1]["coverage"]["share"], events[-1]["warnings"]) == (1.0, {"retried": 1})


def test_the_takes_are_bounded_and_the_first_of_equal_ones_is_sent():
    with taught(deaf_takes=9) as live:
        plain = live.speak(**ASKED, stream=False)
        for retries in (1, 3):
            poor = live.speak(**ASKED, stream=False, retries=retries)
            assert poor.content == plain.content
            assert poor.headers["X-Coverage"] == "0.0000; words=5, swallowed=5, repeated=0"
            assert poor.headers["X-Text-Warnings"] == f"{retries}; retried={retries}"


# A retry storm: clients with OpenAI's package, which tries again by itself, before a service that is full.


CLIENTS = 12
TRIES = 1 + openai.DEFAULT_MAX_RETRIES
PLACES = 2


class Counting:
    """Attempts by client, around the application."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, app: ASGIApp) -> ASGIApp:
        async def count(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                with self._lock:
                    self.attempts[dict(scope["headers"])[b"x-client"].decode()] += 1
            await app(scope, receive, send)

        return count


def test_clients_that_try_again_add_three_tries_each_at_most_and_are_heard_when_there_is_room():
    counting = Counting()
    speaker = Speaker(pause_s=0.3)
    with serving(make_services(speaker, LimitsConfig(max_in_flight=PLACES)), wrap=counting) as live:

        def ask(name: str) -> str:
            client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", default_headers={"x-client": name})
            try:
                client.audio.speech.create(model="chattts", voice="alloy", input="Hello there.", response_format="pcm")
            except openai.RateLimitError:
                return "refused"
            return "heard"

        with ThreadPoolExecutor(CLIENTS) as pool:
            ends = Counter(pool.map(ask, map(str, range(CLIENTS))))
        assert ends["heard"] > PLACES, "some were heard when they came again"
        assert 1 < max(counting.attempts.values()) <= TRIES, "the storm happened"
        assert sum(counting.attempts.values()) <= TRIES * CLIENTS
        assert speaker.opened == ends["heard"], "nobody is spoken to twice"
        assert live.services.speech.admission.in_flight == 0
