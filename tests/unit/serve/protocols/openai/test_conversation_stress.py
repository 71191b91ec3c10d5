"""Sockets under stress, through HAProxy, in every protocol: limits answer in words, nobody else is harmed, nothing is left."""

import asyncio
import itertools
import json
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.exceptions import ConnectionClosed

from pipeline.store.open import open_store
from serve.access.api_keys import Quota
from serve.access.authentication import Authenticator
from serve.access.quotas import LocalQuotas
from serve.config.app_config import ConversationsConfig, LimitsConfig
from serve.http.uvicorn_protocols import MOST_MESSAGE_BYTES
from tests.support.demo_voice import DemoSpeaker, demo_speaker
from tests.support.effort import examples
from tests.support.fakes import CHUNK, Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.haproxy import manager, running
from tests.support.live_server import Live, serving
from tests.support.tongues import ELEVENLABS, ELEVENLABS_SINGLE, OWN, TONGUES, Talker, Tongue, files_open, talking, tasks_left
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.slow

SENTENCE = "This is one more sentence of it. "
LONG = "Many words follow one another here and none is the last one, " * 50 + "but this one is. "
PART_BYTES = 2 * CHUNK  # of a Speaker with one chunk
REFUSED_CONTEXTS = 400  # as many as the pace of a socket's messages has room for at once
CONTEXTS = min(1_000, examples(200))
CHARACTERS = 1_000_000
MOST_BYTES = 64 << 10  # limits.max_body_bytes, below what a frame may have
WORDS_OF = {  # what each protocol says when there is no room, and when a message is too large
    "own": ("overloaded", "body_too_large"),
    "elevenlabs": ("system_busy", "body_too_large"),
    "deepgram": ("TOO_MANY_REQUESTS", "BODY_TOO_LARGE"),
}


def healthy(app: ASGIApp) -> ASGIApp:
    """What Serve puts around an application: the route by which HAProxy knows that a replica lives."""

    async def around(scope: Scope, receive: Receive, send: Send) -> None:
        inner = PlainTextResponse("success") if scope.get("path") == "/-/healthz" else app
        await inner(scope, receive, send)

    return around


@dataclass
class House:
    """A server, and the port of the HAProxy in front of it."""

    live: Live
    port: int
    speaker: Speaker

    @property
    def is_quiet(self) -> bool:
        services = self.live.services
        return self.speaker.opened == self.speaker.closed and (
            services.conversations.open_now == services.speech.admission.in_flight == len(tasks_left()) == 0
        )


@contextmanager
def house(speaker: Speaker | None = None, limits: LimitsConfig | None = None) -> Iterator[House]:
    """Opens a house, and fails if something is left in it."""
    speaker = speaker or Speaker(chunks=2)
    services = make_services(speaker, limits, conversations=ConversationsConfig.varied({"max_lead_s": 600.0, "lead_s": 600.0}))
    with (
        tempfile.TemporaryDirectory(prefix="ha-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        serving(services, wrap=healthy) as live,
        running(manager(Path(folder), server=live.port)) as proxy,
    ):
        wait_until(lambda: proxy.get("/live").startswith(b"HTTP/1.1 200 "))
        before = files_open()
        house_under_test = House(live, proxy.port, speaker)
        yield house_under_test
        wait_until(lambda: house_under_test.is_quiet)
        wait_until(lambda: files_open() <= before)


async def beside(port: int, work: Callable[[], Awaitable[None]]) -> None:
    """Does something harmful while somebody talks, who must not notice."""
    async with talking(OWN, port, seed=3) as client:
        alone = await client.speak(SENTENCE)
        over = asyncio.create_task(work())
        spoken = 0
        while not over.done() or spoken < 3:
            assert await client.speak(SENTENCE) == alone
            spoken += 1
        await over
        assert client.refused == []


@pytest.mark.parametrize("tongue", [OWN, ELEVENLABS], ids=lambda tongue: tongue.name)
def test_contexts_without_end_in_one_socket(tongue: Tongue):
    """Open at once, they are refused in words but for as many as there is room for; one after the other, all are spoken."""
    room = ConversationsConfig().max_contexts

    async def work(port: int) -> None:
        async with talking(tongue, port) as client:
            sending = asyncio.create_task(open_all(client))
            while len(client.refused) < REFUSED_CONTEXTS:
                await client.hear()
            await sending
            assert client.refused == [WORDS_OF[tongue.name][0]] * REFUSED_CONTEXTS
            for number in range(room):
                await client.end(f"c{number}")
            ended = {(await client.until("over")).context for _ in range(room)}
            assert ended == {f"c{number}" for number in range(room)}
        async with talking(tongue, port) as client:
            for number in range(CONTEXTS):
                assert await client.speak("One. ", context=f"d{number}")
            assert client.refused == []

    async def open_all(client: Talker) -> None:
        for number in range(room + REFUSED_CONTEXTS):
            await client.begin(f"c{number}")

    with house() as at:
        asyncio.run(beside(at.port, lambda: work(at.port)))


@pytest.mark.parametrize("tongue", TONGUES, ids=lambda tongue: tongue.name)
def test_a_million_characters_in_one_context(tongue: Tongue):
    """What does not fit is refused in words and not taken; what was taken is spoken, all of it."""

    async def work(at: House) -> None:
        async with talking(tongue, at.port) as client:
            await client.begin()
            await client.say("x" * CHARACTERS)
            await client.until("refused")
            sending = asyncio.create_task(write(client))
            await client.until("over")
            await sending
        assert set(client.refused) == {WORDS_OF[tongue.name][0]}
        accepted = 1 + CHARACTERS // len(LONG) - len(client.refused)
        assert accepted >= 3, "the first of them had room"
        spoken = "".join(request.text for request in at.speaker.requests if request.sampling.seed == 7)
        assert spoken.split() == (LONG * accepted).split()

    async def write(client: Talker) -> None:
        for _ in range(CHARACTERS // len(LONG)):
            await client.say(LONG)
        await client.end()

    with house(Speaker(chunks=1, pause_s=0.001)) as at:
        asyncio.run(beside(at.port, lambda: work(at)))


@pytest.mark.parametrize("tongue", TONGUES, ids=lambda tongue: tongue.name)
def test_a_million_characters_that_wait_for_room_are_all_spoken(tongue: Tongue):
    async def work(at: House) -> None:
        async with talking(tongue, at.port) as client:
            await client.begin()
            received = 0
            for number in range(CHARACTERS // len(LONG)):
                await client.say(LONG)
                while received < (number - 2) * PART_BYTES:
                    await client.hear()
                    received += sum(map(len, client.audio.values()))
                    client.audio.clear()
            assert client.refused == []
            await client.end()
            await client.until("over")
        spoken = "".join(request.text for request in at.speaker.requests if request.sampling.seed == 7)
        assert spoken.split() == (LONG * (CHARACTERS // len(LONG))).split()

    with house(Speaker(chunks=1)) as at:
        asyncio.run(beside(at.port, lambda: work(at)))


@pytest.mark.parametrize("tongue", TONGUES, ids=lambda tongue: tongue.name)
def test_messages_of_a_mib(tongue: Tongue):
    """Up to what a frame may have they are refused in words, and the socket stays; a larger one closes its socket."""

    async def work(port: int) -> None:
        empty = len(json.dumps(tongue.says("c", "")))
        async with talking(tongue, port) as client:
            await client.begin()
            for _ in range(3):
                await client.say("x" * (MOST_MESSAGE_BYTES - empty))
                await client.until("refused")
            assert client.refused == [WORDS_OF[tongue.name][1]] * 3
            await client.say("One. ")
            await client.end()
            await client.until("over")
            assert client.audio
        async with talking(tongue, port) as client:
            with suppress(ConnectionClosed):
                await client.say("x" * MOST_MESSAGE_BYTES)
            assert await client.closed() == 1009

    with house(limits=LimitsConfig.varied({"max_body_bytes": MOST_BYTES})) as at:
        asyncio.run(beside(at.port, lambda: work(at.port)))


@pytest.mark.parametrize("tongue", TONGUES, ids=lambda tongue: tongue.name)
def test_a_peer_that_stops_reading_is_let_go(tongue: Tongue):
    async def work(at: House) -> None:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.setblocking(False)
        await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", at.port))
        async with talking(tongue, at.port, seed=600, sock=small, max_queue=1, close_timeout=0.1) as client:
            await client.begin()
            await client.say(SENTENCE)
            await client.send(tongue.flushes("c"))
            await asyncio.to_thread(wait_until, lambda: at.live.services.conversations.open_now == 1)  # who talks beside it

    class Endless(Speaker):
        """Talks for ever to whom reads nothing."""

        async def stream(self, request):  # type: ignore[no-untyped-def]
            speaker = self if request.sampling.seed == 600 else Speaker(chunks=2)
            async for chunk in super(Endless, speaker).stream(request) if speaker is self else speaker.stream(request):
                yield chunk

    with house(Endless(chunks=None, chunk_samples=48_000), LimitsConfig(stall_timeout_s=0.5)) as at:
        asyncio.run(beside(at.port, lambda: work(at)))


# Sockets of every protocol over the demo voice: the bytes follow from the text alone, and nothing of a talk stays behind.


TEXT = "So this is one sentence of it. And 3.50 😀 is two."


@dataclass(repr=False)
class Demo:
    """A service that speaks with the demo voice and asks for a key, and what is held while somebody talks."""

    live: Live
    speaker: DemoSpeaker
    key: str
    key_id: str
    quotas: LocalQuotas

    def talking(self, tongue: Tongue, seed: int = 7) -> talking:
        return talking(tongue, self.live.port, seed, additional_headers={"Authorization": f"Bearer {self.key}"})

    @property
    def held(self) -> dict[str, int]:
        """Everything that must be given back."""
        stats, services = self.speaker.engine.stats(), self.live.services
        return {
            "slots": stats.slots_used + stats.waiting,
            "places": services.speech.admission.in_flight,
            "sockets": services.conversations.open_now,
            "permits": self.quotas.streams(self.key_id),
            "tasks": len(tasks_left()),
        }


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    store, quotas = open_store(str(tmp_path_factory.mktemp("keys") / "store.sqlite")), LocalQuotas()
    key, key_id = add(store, quota=Quota(requests_per_s=None, streams=32))
    gate, limits = Authenticator(ring_of(store), quotas), LimitsConfig(first_audio_timeout_s=300)
    with demo_speaker() as speaker, guarded(gate, speaker, limits) as live:
        yield Demo(live, speaker, key, key_id, quotas)
    store.close()


def cut(text: str, places: list[int]) -> list[str]:
    """The text in pieces; a place may be inside a character that UTF-16 writes in two halves."""
    units = text.encode("utf-16-le")
    ends = [0, *sorted(2 * place for place in places), len(units)]
    pieces = [units[start:stop].decode("utf-16-le", "surrogatepass") for start, stop in itertools.pairwise(ends)]
    return [piece for piece in pieces if piece]


async def spoken(demo: Demo, tongue: Tongue, *pieces: str, seed: int = 7) -> bytes:
    async with demo.talking(tongue, seed) as client:
        audio = await client.speak(*pieces)
        assert client.refused == []
    return audio


@pytest.mark.parametrize("tongue", [*TONGUES, ELEVENLABS_SINGLE], ids=lambda tongue: tongue.name)
@settings(max_examples=examples(15), deadline=None)
@given(places=st.lists(st.integers(0, len(TEXT) + 1), max_size=12))
def test_any_cut_of_a_text_into_messages_has_the_same_bytes(demo: Demo, tongue: Tongue, places: list[int]):
    async def both() -> None:
        assert await spoken(demo, tongue, *cut(TEXT, places)) == await spoken(demo, tongue, TEXT)

    asyncio.run(both())


@pytest.mark.parametrize("tongue", TONGUES, ids=lambda tongue: tongue.name)
@settings(max_examples=examples(25), deadline=None)
@given(frames=st.integers(0, 12), pause_s=st.floats(0, 0.05), leaves=st.booleans())
def test_a_cancel_at_any_point_gives_everything_back(demo: Demo, tongue: Tongue, frames: int, pause_s: float, leaves: bool):
    """After so many frames and so long; by the protocol's own message where it has one, and by leaving without a word."""

    async def work() -> None:
        await until(lambda: not any(demo.held.values()))
        files = files_open()
        async with demo.talking(tongue) as client:
            await client.begin()
            await client.say(TEXT)
            await client.end()
            for _ in range(frames):
                if (await client.hear()).kind == "over":
                    break
            await asyncio.sleep(pause_s)
            if leaves or tongue.cancels is None:
                client.connection.transport.abort()
            else:
                await client.send(tongue.cancels("c"))
                await client.until("cancelled")
                await until(lambda: demo.held["slots"] == demo.held["places"] == 0)
                client.audio.clear()
                assert await client.speak("Hello.") == hello
        await until(lambda: not any(demo.held.values()) and files_open() <= files)

    hello = asyncio.run(spoken(demo, tongue, "Hello."))
    asyncio.run(work())
