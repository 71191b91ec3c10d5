"""Waking: who is refused, who waits, and what Serve is asked for meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import StageAsleep
from serve.remote.waking import FIRST_GUESS_S, LEAST_S, Wakefulness, Waking
from tests.support.handles import local_handle, with_router
from tests.support.waiting import until


class Deployment:
    """A deployment whose first replica answers when `start` is set, and stays if it `comes`."""

    def __init__(self, replicas: int = 0, min_replicas: int | None = 0, *, comes: bool = True) -> None:
        self.replicas = dict.fromkeys(range(replicas))
        self.calls = 0
        self.comes = comes
        self.start = asyncio.Event()
        self.handle = with_router(local_handle(stats=self._answer), self.replicas, min_replicas)

    async def _answer(self) -> dict[str, Any]:
        self.calls += 1
        await self.start.wait()
        if self.comes:
            self.replicas[0] = None
        return {}


class Clock:
    """Held: it moves when a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def waking(give_up_s: float = 300.0, **deployments: Deployment) -> tuple[Waking, Clock]:
    clock = Clock()
    return Waking({name: one.handle for name, one in deployments.items()}, give_up_s, clock=clock), clock


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Any) -> None:
    asyncio.run(test())


@pytest.mark.parametrize(("replicas", "least"), [(1, 0), (0, 1), (0, None)], ids=["has one", "always should", "fixed number"])
def test_what_is_awake_is_not_asked_for(replicas: int, least: int | None):
    async def test() -> None:
        text = Deployment(replicas, least)
        wakes, _ = waking(text=text)
        wakes.check(["text"])
        assert await wakes.wait(["text"], 0.0) == 0
        assert (wakes.state("text"), text.calls) == (Wakefulness.AWAKE, 0)

    run(test)


def test_as_long_as_serve_has_told_nothing_it_counts_as_awake():
    for handle in (SimpleNamespace(), SimpleNamespace(_router=None)):
        assert Waking({"text": handle}, 1.0).is_awake("text")  # type: ignore[dict-item]


def test_the_refused_leave_one_call_for_each_stage_and_are_told_what_is_left():
    async def test() -> None:
        text, acoustic = Deployment(), Deployment()
        wakes, clock = waking(text=text, acoustic=acoustic, vocoder=Deployment(replicas=1))
        assert wakes.state("text") is Wakefulness.ASLEEP
        for passed, left in ((0.0, FIRST_GUESS_S), (20.0, FIRST_GUESS_S - 20), (3600.0, LEAST_S)):
            clock.now = 100.0 + passed
            for _ in range(3):
                with pytest.raises(StageAsleep, match="text and acoustic had") as refused:
                    wakes.check(["text", "acoustic", "vocoder"])
            assert refused.value.retry_after_s == left
            await soon()
        assert (text.calls, acoustic.calls, wakes.state("text")) == (1, 1, Wakefulness.WAKING)
        text.start.set()
        await soon()
        assert wakes.awake(["text", "acoustic", "vocoder"]) == ["text", "vocoder"]

    run(test)


def test_the_next_wake_is_expected_to_take_as_long_as_the_last():
    async def test() -> None:
        acoustic = Deployment()
        wakes, clock = waking(acoustic=acoustic)
        with pytest.raises(StageAsleep):
            wakes.check(["acoustic"])
        await soon()
        clock.now += 8.0
        acoustic.start.set()
        await soon()
        wakes.check(["acoustic"])
        acoustic.replicas.clear()
        acoustic.start.clear()
        with pytest.raises(StageAsleep) as refused:
            wakes.check(["acoustic"])
        assert refused.value.retry_after_s == 8.0

    run(test)


def test_who_has_the_time_waits_for_all_stages_and_who_has_not_is_refused_at_once():
    async def test() -> None:
        text, acoustic = Deployment(), Deployment()
        wakes, clock = waking(text=text, acoustic=acoustic)
        with pytest.raises(StageAsleep):
            await wakes.wait(["text", "acoustic"], FIRST_GUESS_S - 1)
        waits = asyncio.create_task(wakes.wait(["text", "acoustic"], 60.0))
        await soon()
        text.start.set()
        await soon()
        assert not waits.done()
        clock.now += 12.0
        acoustic.start.set()
        assert await waits == 12.0
        assert (text.calls, acoustic.calls) == (1, 1)

    run(test)


def test_who_leaves_takes_nobodys_wake_away():
    async def test() -> None:
        text = Deployment()
        wakes, clock = waking(text=text)
        short = asyncio.create_task(wakes.wait(["text"], FIRST_GUESS_S))
        long = asyncio.create_task(wakes.wait(["text"], 600.0))
        await soon()
        short.cancel()
        await soon()
        assert wakes.state("text") is Wakefulness.WAKING
        clock.now += 1.0
        text.start.set()
        assert await long == 1.0

    run(test)


def test_a_wait_that_becomes_too_long_is_refused_after_all():
    async def test() -> None:
        text = Deployment(comes=False)
        wakes, clock = waking(text=text)
        waits = asyncio.create_task(wakes.wait(["text"], 60.0))
        await soon()
        clock.now += 45.0
        text.start.set()
        with pytest.raises(StageAsleep) as refused:
            await waits
        assert refused.value.retry_after_s > 15.0

    run(test)


def test_a_call_that_fails_or_takes_too_long_is_repeated_by_the_next_request():
    async def test() -> None:
        text = Deployment()
        wakes, _ = waking(give_up_s=0.001, text=text)
        for calls in (1, 2):
            with pytest.raises(StageAsleep):
                wakes.check(["text"])
            assert wakes.state("text") is Wakefulness.WAKING
            await until(lambda: wakes.state("text") is Wakefulness.ASLEEP)
            assert text.calls == calls

    run(test)
