"""Sockets under stress on the demo voice, on both data paths: 64 of them, and clients that ask for too much."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from serve.http.uvicorn_protocols import MOST_MESSAGE_BYTES
from tests.support.service import is_idle
from tests.support.started import Started, started
from tests.support.tongues import DEEPGRAM, ELEVENLABS, OWN, TONGUES, Tongue, talking
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

SOCKETS = 64
TEXT = "So this is the first sentence. And here is the second one."
MOST_GROWTH_MIB = 300
CONTEXTS = 408  # eight are open, and the pace of a socket has room for 400 refusals at once
CHARACTERS = 1_000_000
# All 32 wait for one voice on two cores, which takes longer than a listener should wait.
CHANGES = {
    "max_waiting: 16": "max_waiting: 40",
    "max_ongoing_requests: 96": "max_ongoing_requests: 256",
    "limits: {": "limits: {first_audio_timeout_s: 300, stall_timeout_s: 5, ",
}


@dataclass
class Service:
    """A service, and what its processes hold."""

    of: Started

    @property
    def port(self) -> int:
        return self.of.port

    def health(self) -> dict[str, Any]:
        report: dict[str, Any] = requests.get(f"{self.of.url}/health", timeout=60).json()
        return report

    def replicas(self) -> dict[str, int]:
        """Name of each replica and Serve's proxy -> its process."""
        titles = ("ServeReplica:chattts:Ingress", "ServeReplica:chattts:AcousticModel", "ProxyActor")
        pids = [(title, process.pid) for process in self.of.processes() for title in titles if title in process.command()]
        return dict(pids)

    def memory_mib(self) -> dict[str, int]:
        return {title: psutil.Process(pid).memory_info().rss >> 20 for title, pid in self.replicas().items()}

    def files(self) -> dict[str, int]:
        return {title: len(list(Path(f"/proc/{pid}/fd").iterdir())) for title, pid in self.replicas().items()}


@pytest.fixture(scope="module", params=[(), ("--plain",)], ids=["through HAProxy", "through Serve's own proxy"])
def service(home: Path, folder: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    # Five seconds are too few for Serve's own proxy on a busy machine.
    patience = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
    with started(*request.param, home=home, folder=folder, changes=CHANGES, **patience) as running:
        running.wait_until_ready()
        yield Service(running)


@pytest.fixture(autouse=True)
def nothing_is_left(service: Service) -> Iterator[None]:
    """Slots, places and files are given back."""
    wait_until(lambda: is_idle(service.health()), 120.0)
    before = service.files()
    yield
    wait_until(lambda: is_idle(service.health()), 120.0)
    wait_until(lambda: all(count <= before[title] + 2 for title, count in service.files().items()), 60.0)


async def spoken(service: Service, tongue: Tongue, seed: int) -> bytes:
    async with talking(tongue, service.port, seed) as client:
        audio = await client.speak(TEXT)
        assert client.refused == []
    return audio


def test_of_64_sockets_the_talking_half_has_the_bytes_of_each_alone(service: Service, capsys: pytest.CaptureFixture[str]):
    talks = [(TONGUES[number % 3], number % 6) for number in range(SOCKETS // 2)]

    async def alone() -> dict[tuple[str, int], bytes]:
        return {(tongue.name, seed): await spoken(service, tongue, seed) for tongue, seed in dict.fromkeys(talks)}

    async def silent(over: asyncio.Event) -> None:
        async with talking(OWN, service.port) as client:
            await client.begin()
            await over.wait()
            await client.say("Still here.")

    async def together() -> list[bytes]:
        over = asyncio.Event()
        quiet = [asyncio.create_task(silent(over)) for _ in range(SOCKETS // 2)]
        try:
            return await asyncio.gather(*(spoken(service, tongue, seed) for tongue, seed in talks))
        finally:
            over.set()
            await asyncio.gather(*quiet)

    expected, before = asyncio.run(alone()), service.memory_mib()
    streams = asyncio.run(together())
    after = service.memory_mib()
    with capsys.disabled():
        print(f"\n  {SOCKETS} sockets, MiB before: {before}, after: {after}")
    assert [audio == expected[tongue.name, seed] for audio, (tongue, seed) in zip(streams, talks, strict=True)] == [True] * 32
    assert all(after[title] - before[title] < MOST_GROWTH_MIB for title in before)


def test_clients_that_ask_for_too_much_are_refused_in_words_and_harm_nobody(
    service: Service, capsys: pytest.CaptureFixture[str]
):
    async def opens(tongue: Tongue) -> None:
        async with talking(tongue, service.port) as client:
            sending = asyncio.create_task(begins(client))
            while len(client.refused) < CONTEXTS - 8:
                await client.hear()
            await sending

    async def begins(client: Any) -> None:
        for number in range(CONTEXTS):
            await client.begin(f"c{number}")

    async def writes(tongue: Tongue) -> None:
        async with talking(tongue, service.port) as client:
            await client.begin()
            await client.say("x" * CHARACTERS)
            await client.until("refused")
            for _ in range(2):
                await client.say("x" * (MOST_MESSAGE_BYTES - 200))
                await client.until("refused")
            assert len(client.refused) == 3
            assert await client.speak(TEXT, context="d")

    async def reads_nothing() -> None:
        async with talking(OWN, service.port, max_queue=1, close_timeout=0.1) as client:
            await client.begin()
            for _ in range(4):
                await client.say(TEXT * 50)
            await asyncio.sleep(30)

    async def all_of_them() -> list[bytes]:
        work = [opens(OWN), opens(ELEVENLABS), *map(writes, TONGUES), reads_nothing()]
        harmful = asyncio.gather(*work)
        streams = []
        while not harmful.done():
            streams.append(await spoken(service, DEEPGRAM, 3))
        await harmful
        return streams

    expected, before = asyncio.run(spoken(service, DEEPGRAM, 3)), service.memory_mib()
    streams = asyncio.run(all_of_them())
    after = service.memory_mib()
    with capsys.disabled():
        print(f"\n  too much: MiB before: {before}, after: {after}; {len(streams)} talks beside")
    assert set(streams) == {expected}
    assert all(after[title] - before[title] < MOST_GROWTH_MIB for title in before)
