"""Background tasks: one that ends is trouble, by its name."""

import asyncio

import pytest

from pipeline.errors import EngineDead
from serve.deployments.background_tasks import Background, trouble_of


def test_a_background_task_that_ends_is_reported_by_name():
    async def run() -> None:
        background = Background()
        background.start("waits", asyncio.sleep(3600))
        await asyncio.sleep(0)
        background.check()

        async def fails() -> None:
            raise ValueError("a client's words")

        background.start("fails", fails())
        await asyncio.sleep(0.01)
        with pytest.raises(EngineDead, match=r"fails ended \(ValueError\)") as dead:
            background.check()
        assert "words" not in dead.value.message

    asyncio.run(run())


@pytest.mark.parametrize("how", ["cancelled", "ended"])
def test_a_background_task_has_no_good_end(how):
    async def run() -> None:
        background = Background()
        background.start("short", asyncio.sleep(3600 if how == "cancelled" else 0))
        if how == "cancelled":
            background._tasks[0].cancel()
        await asyncio.sleep(0.01)
        with pytest.raises(EngineDead, match="short"):
            background.check()

    asyncio.run(run())


def test_trouble_is_what_the_health_check_says():
    def dead() -> None:
        raise EngineDead("the loop has ended")

    assert trouble_of(lambda: None) == ""
    assert trouble_of(dead) == "the loop has ended"
