"""Sockets of every protocol over the demo voice: the bytes follow from the text alone, and nothing of a talk stays behind."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.store.open import open_store
from serve.access.api_keys import Quota
from serve.access.authentication import Authenticator
from serve.access.quotas import LocalQuotas
from serve.config.app_config import LimitsConfig
from tests.support.demo_voice import DemoSpeaker, demo_speaker
from tests.support.effort import examples
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import Live
from tests.support.tongues import ELEVENLABS_SINGLE, TONGUES, Tongue, files_open, talking, tasks_left
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TEXT = "So this is one sentence of it. And 3.50 😀 is two."
SHORT = "It is 3.50 😀."
TALKS = 16


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
    key, key_id = add(store, quota=Quota(requests_per_s=None, streams=2 * TALKS))
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


def test_sixteen_talks_at_once_have_the_bytes_of_each_alone(demo: Demo):
    """In all protocols; each is cut elsewhere, with a seed of its own."""
    talks = [(TONGUES[number % len(TONGUES)], number, cut(SHORT, [number % 14, 2 * number % 14])) for number in range(TALKS)]

    async def one_after_the_other() -> list[bytes]:
        return [await spoken(demo, tongue, *pieces, seed=seed) for tongue, seed, pieces in talks]

    async def at_once() -> list[bytes]:
        return await asyncio.gather(*(spoken(demo, tongue, *pieces, seed=seed) for tongue, seed, pieces in talks))

    together = asyncio.run(at_once())  # before each alone, whose steps may then come from the cache
    alone = asyncio.run(one_after_the_other())
    assert together == alone
    assert len(set(alone)) == TALKS

    async def at_rest() -> None:
        await until(lambda: not any(demo.held.values()))

    asyncio.run(at_rest())
