"""Every kind of work under every kind of limit: nobody gets more than the one request that crosses it, over any protocol."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from pipeline.store.open import open_store
from pipeline.types import AudioChunk, SynthesisRequest
from serve.access import redis_quotas
from serve.access.api_keys import NAMESPACE, KeyRing, Quota
from serve.access.authentication import Authenticator
from serve.access.quotas import LocalQuotas, Quotas
from serve.access.redis_quotas import RedisQuotas
from serve.config.jobs import JobsConfig
from serve.config.protocols import WyomingConfig
from serve.jobs.runner import JobRunner
from serve.protocols.wyoming.listener import WyomingListener
from tests.support.fakes import Speaker, make_jobs, make_services
from tests.support.guarded import FREE, add
from tests.support.live_server import Live, serving
from tests.support.ports import free_port
from tests.support.riva_server import Caller, riva_serving
from tests.support.services import RedisServer
from tests.support.waiting import until, wait_until

TEXTS = 5
TEXT = "Hello there."
SECOND = 1.0  # of audio, for every text


class Counting(Speaker):
    """Knows how many speak at a time."""

    most = 0

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        async for chunk in super().stream(request):
            self.most = max(self.most, self.opened - self.closed)
            yield chunk


@dataclass
class Place:
    """A service with keys, and the one that is used now."""

    live: Live
    speaker: Counting
    ring: KeyRing
    folder: Path
    key: str = ""
    key_id: str = ""

    def post(self, path: str, **body: Any) -> str:
        """What is refused, in its own words."""
        reply = requests.post(f"{self.live.url}{path}", json=body, headers={"x-api-key": self.key}, timeout=60)
        return reply.text if reply.status_code >= 400 else ""

    def at_once(self, path: str, **body: Any) -> list[str]:
        with ThreadPoolExecutor(TEXTS) as pool:
            return list(pool.map(lambda _: self.post(path, **body), range(TEXTS)))

    def socket(self, path: str, *messages: dict[str, Any], ends: int = 0) -> list[str]:
        """Sends messages; returns errors, until so many contexts have ended or the other side closes."""
        errors, url = [], self.live.url.replace("http", "ws") + path
        with connect(url, additional_headers={"x-api-key": self.key}) as connection:
            with suppress(ConnectionClosed):  # who is refused reads why, however much more there was to send
                for message in messages:
                    connection.send(json.dumps(message))
            try:
                for frame in connection:
                    content = json.loads(frame) if isinstance(frame, str) else {}
                    errors += [str(content)] if "error" in str(frame).lower() else []
                    ends -= (is_end := content.get("type") in ("closed", "error", "Flushed"))
                    if is_end and not ends:
                        break
            except ConnectionClosed as why:
                errors.append(str(why))
        return errors


def batch(place: Place) -> list[str]:
    body = {"response_format": "pcm", "items": [{"input": TEXT}] * TEXTS}
    url, headers = f"{place.live.url}/v1/audio/speech/batch", {"x-api-key": place.key}
    return [
        str(result.get("error", "")) for result in requests.post(url, json=body, headers=headers, timeout=60).json()["results"]
    ]


def of_contexts(place: Place) -> list[str]:
    opened = [{"type": "open", "context": f"c{number}", "speech": {"response_format": "pcm"}} for number in range(TEXTS)]
    messages = [{"type": "text", "context": f"c{number}", "text": TEXT} for number in range(TEXTS)]
    ends = [{"type": "close", "context": f"c{number}"} for number in range(TEXTS)]
    return place.socket("/v1/audio/conversation", *opened, *messages, *ends, ends=TEXTS)


def of_parts(place: Place) -> list[str]:
    parts = [{"type": "text", "text": f"{TEXT} "}, {"type": "flush"}] * TEXTS
    opened = {"type": "open", "speech": {"response_format": "pcm"}, "lead_s": 60}
    return place.socket("/v1/audio/conversation", opened, *parts, {"type": "close"}, ends=1)


def elevenlabs_socket(place: Place) -> list[str]:
    parts = [{"text": f"{TEXT} ", "flush": True}] * TEXTS
    return place.socket("/v1/text-to-speech/alloy/stream-input?output_format=pcm_24000", {"text": " "}, *parts, {"text": ""})


def deepgram_socket(place: Place) -> list[str]:
    parts = [{"type": "Speak", "text": TEXT}, {"type": "Flush"}] * TEXTS
    return place.socket("/v1/speak?encoding=linear16", *parts, ends=TEXTS)


def wyoming(place: Place) -> list[str]:
    async def speak(port: int) -> str:
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Synthesize(TEXT).event())
            errors = []
            while (event := await client.read_event()) is not None:
                errors += [str(event.data)] if event.type == "error" else []
                if event.type in ("audio-stop", "error"):
                    break
            return "".join(errors)

    async def run() -> list[str]:
        port = free_port()
        listener = WyomingListener(WyomingConfig(port=port, key=place.key_id), place.live.services)
        await listener.start()
        try:
            return await asyncio.gather(*(speak(port) for _ in range(TEXTS)))
        finally:
            await listener.stop()

    return asyncio.run(run())


def riva(place: Place, *, online: bool) -> list[str]:
    with riva_serving(place.live.services) as address:
        caller = Caller(address, authorization=f"Bearer {place.key}")

        def whole(_: int) -> str:
            try:
                return str(caller.whole(text=TEXT)[1])
            except grpc.RpcError as error:
                return str(error)

        if not online:
            with ThreadPoolExecutor(TEXTS) as pool:
                return list(pool.map(whole, range(TEXTS)))
        try:
            return [str(len(list(caller.stream(*[{"text": TEXT}] * TEXTS))))]
        except grpc.RpcError as error:
            return [str(error)]


VAPI = {"type": "voice-request", "text": TEXT, "sampleRate": 24_000}
WORK: dict[str, Callable[[Place], list[str]]] = {
    "speech": lambda place: place.at_once("/v1/audio/speech", input=TEXT, response_format="pcm"),
    "batch": batch,
    "elevenlabs": lambda place: place.at_once("/v1/text-to-speech/alloy?output_format=pcm_24000", text=TEXT),
    "elevenlabs dialogue": lambda place: place.at_once("/v1/text-to-dialogue", inputs=[{"text": TEXT, "voice_id": "alloy"}]),
    "elevenlabs socket": elevenlabs_socket,
    "deepgram": lambda place: place.at_once("/v1/speak", text=TEXT),
    "deepgram flux": lambda place: place.at_once("/v2/speak", text=TEXT),
    "deepgram socket": deepgram_socket,
    "kokoro": lambda place: place.at_once("/dev/captioned_speech", input=TEXT),
    "piper": lambda place: place.at_once("/piper", text=TEXT),
    "vapi": lambda place: place.at_once("/vapi", message=VAPI),
    "dialogue": lambda place: place.at_once("/v1/audio/dialogue", turns=[{"voice": "alloy", "text": TEXT}], level=False),
    "parts of a socket": of_parts,
    "contexts of a socket": of_contexts,
    "wyoming": wyoming,
    "riva": lambda place: riva(place, online=False),
    "riva online": lambda place: riva(place, online=True),
}

LIMITS = {
    "characters": Quota(requests_per_s=None, streams=None, characters_a_day=2 * len(TEXT) + 6),
    "audio": Quota(requests_per_s=None, streams=None, characters_a_day=None, audio_s_a_minute=2.0),
    "rate": Quota(requests_per_s=0.001, burst=3, streams=None, characters_a_day=None),
    "streams": Quota(requests_per_s=None, streams=2, characters_a_day=None),
}
MOST_TEXTS = {"characters": 2, "audio": 3, "rate": 3, "streams": TEXTS}
WORDS = ("quota", "rate_limit", "rate limit", "too_many", "too many", "concurrent", "resource_exhausted", "busy")


@contextmanager
def serving_keys(folder: Path, quotas: Quotas, **options: Any) -> Iterator[Place]:
    store = open_store(str(folder / "store.sqlite"))
    add(store)
    ring, speaker = KeyRing(store), Counting(pause_s=0.004)
    ring.refresh()
    gate = Authenticator(ring, quotas)
    services = make_services(speaker, owner=gate.owner)
    object.__setattr__(services, "authenticator", gate)
    with serving(services, **options) as live:
        yield Place(live, speaker, ring, folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with serving_keys(tmp_path_factory.mktemp("limits"), LocalQuotas()) as place:
        yield place


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_quotas, "ANSWER_TIMEOUT_S", 30.0)  # a Redis on a busy machine answers late, but it answers
        quotas = RedisQuotas(server.url, LocalQuotas())
        with serving_keys(tmp_path_factory.mktemp("shared"), quotas, close=quotas.close) as place:
            yield place
    server.kill()


def given_a_key(place: Place, quota: Quota) -> None:
    place.key, place.key_id = add(place.ring.store, quota=quota)
    place.ring.refresh()


def check(place: Place, work: str, limit: str) -> None:
    given_a_key(place, LIMITS[limit])
    speaker = place.speaker
    speaker.most, speaker.requests, before, opened = 0, [], speaker.produced, speaker.opened
    output = "".join(WORK[work](place)).lower()
    wait_until(lambda: speaker.opened == speaker.closed)
    spoken, audio_s = speaker.opened - opened, (speaker.produced - before) * 0.2
    assert 1 <= spoken <= MOST_TEXTS[limit], output[:300]
    assert audio_s <= MOST_TEXTS[limit] * SECOND + 1e-6
    assert limit != "streams" or speaker.most <= 2
    assert spoken == TEXTS or any(word in output for word in WORDS), output[:300]
    if limit == "characters":
        assert charged(place) == sum(len(request.text) for request in speaker.requests)


def charged(place: Place) -> int:
    """Characters, as the key is told."""
    reply = requests.get(f"{place.live.url}/v1/user", headers={"x-api-key": place.key}, timeout=60)
    return int(reply.json()["subscription"]["character_count"])


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("work", WORK)
def test_nobody_gets_more_than_the_request_that_crosses_a_limit(place: Place, work: str, limit: str):
    check(place, work, limit)


@pytest.mark.parametrize("work", WORK)
def test_a_text_longer_than_its_key_allows_is_refused_by_its_length(place: Place, work: str):
    given_a_key(place, Quota(requests_per_s=None, streams=None, characters_a_request=len(TEXT) - 1))
    opened = place.speaker.opened
    replies = "".join(WORK[work](place)).lower()
    assert place.speaker.opened == opened
    assert any(word in replies for word in ("too_long", "at most", "max_character")), replies[:300]
    assert charged(place) == 0


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("work", ["speech", "batch", "parts of a socket", "deepgram socket"])
def test_replicas_with_a_redis_hold_the_same_limits(shared: Place, work: str, limit: str):
    check(shared, work, limit)


@pytest.mark.parametrize("limit", ["characters", "audio", "streams"])
def test_the_parts_of_a_job_wait_for_the_limits_of_its_key(place: Place, tmp_path: Path, limit: str):
    """The POST was one request of the rate, and paid all characters; the parts go on as soon as audio and streams allow it."""
    given_a_key(place, LIMITS[limit])
    speaker, service = place.speaker, make_jobs(place.live.services.speech, JobsConfig(parallel=TEXTS), tmp_path)
    object.__setattr__(place.live.services, "jobs", service)
    speaker.most, before = 0, speaker.produced
    output = place.post("/v1/audio/jobs", input="\n\n".join(f"{number} {TEXT}" for number in range(TEXTS)))
    assert ("quota_exceeded" in output) == (limit == "characters")

    async def run() -> None:
        running = asyncio.create_task(JobRunner(service, place.live.services.speech, look_s=0.02).run())
        if limit != "characters":
            await until(lambda: speaker.produced > before)
        await asyncio.sleep(0.5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    audio_s = (speaker.produced - before) * 0.2
    assert audio_s <= {"characters": 0.0, "audio": 3.0, "streams": 2.0 * TEXTS}[limit] + 1e-6
    assert limit == "characters" or (audio_s and speaker.most <= (2 if limit == "streams" else TEXTS))


@pytest.mark.parametrize(
    ("path", "method", "texts"),
    [("/v1/audio/voices/calm/preview", "GET", 1), ("/v1/audio/voices/calm/score", "POST", 3), ("/v1/text/refine", "POST", 1)],
)
def test_samples_of_voices_and_refined_texts_are_paid(place: Place, path: str, method: str, texts: int):
    given_a_key(place, Quota(requests_per_s=None, streams=None, characters_a_day=1000))
    place.speaker.requests = []
    headers, body = {"x-api-key": place.key}, {"input": TEXT} if "refine" in path else None
    assert requests.request(method, f"{place.live.url}{path}", headers=headers, json=body, timeout=60).status_code == 200
    assert len(place.speaker.requests) == texts
    assert charged(place) == sum(len(request.text) for request in place.speaker.requests)
    given_a_key(place, Quota(requests_per_s=None, streams=None, characters_a_day=5))
    refused = requests.request(
        method, f"{place.live.url}{path}", headers=headers | {"x-api-key": place.key}, json=body, timeout=60
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
    assert charged(place) == 0


@pytest.mark.parametrize("path", ["/v1/audio/conversation", "/v1/speak", "/v1/text-to-speech/alloy/multi-stream-input"])
def test_a_revoked_key_ends_its_idle_socket(place: Place, path: str):
    given_a_key(place, FREE)
    with connect(place.live.url.replace("http", "ws") + path, additional_headers={"x-api-key": place.key}) as connection:
        revoke(place)
        with pytest.raises(ConnectionClosed, match="1008"):
            list(connection)


def test_a_revoked_key_ends_its_streams(tmp_path: Path):
    """A stream of speech over HTTP, and a stream of texts over gRPC that waits for the next one."""
    body = {"input": TEXT, "response_format": "pcm"}
    # A place of its own: the conversations' event belongs to the loop that has waited for it first.
    with serving_keys(tmp_path, LocalQuotas()) as place:
        given_a_key(place, FREE)
        place.speaker.chunks = None
        url, headers = f"{place.live.url}/v1/audio/speech", {"x-api-key": place.key}
        with requests.post(url, json=body, headers=headers, stream=True, timeout=60) as reply:
            pieces = reply.iter_content(1000)
            next(pieces)
            revoke(place)
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                list(pieces)
        place.speaker.chunks = 5
        wait_until(lambda: place.speaker.opened == place.speaker.closed)
        given_a_key(place, FREE)
        with riva_serving(place.live.services) as address:
            replies = Caller(address, authorization=f"Bearer {place.key}").growing({"text": TEXT}, until=threading.Event())
            next(replies)
            revoke(place)
            with pytest.raises(grpc.RpcError, match="invalid_api_key"):
                list(replies)


def revoke(place: Place) -> None:
    place.ring.store.delete(NAMESPACE, place.key_id)
    place.ring.refresh()
