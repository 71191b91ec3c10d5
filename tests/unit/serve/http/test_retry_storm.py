"""A retry storm: clients with OpenAI's package, which tries again by itself, before a service that is full."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.config.app_config import LimitsConfig
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving

pytestmark = pytest.mark.slow

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
