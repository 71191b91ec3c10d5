"""Background tasks: work that a replica does besides its calls, for as long as it lives.

In:    coroutines that should run as long as the replica does
Out:   EngineDead when one of them has ended
Owns:  the tasks, until they are stopped
Never: restarting a task: the replica is replaced
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pipeline.errors import EngineDead


class Background:
    """Starts tasks, and reports when one of them has ended."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Starts `work` under this name."""
        self._tasks.append(asyncio.create_task(work, name=name))

    def check(self) -> None:
        """Checks that all tasks still run, as part of a replica's check_health.

        Raises:
            EngineDead: a task has ended.
        """
        for task in self._tasks:
            if task.done():
                why = "was cancelled" if task.cancelled() else f"ended ({type(task.exception()).__name__})"
                raise EngineDead(f"the background task {task.get_name()} {why}; it should run as long as the replica")

    async def stop(self) -> None:
        """Cancels all tasks; returns when they have ended."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def trouble_of(check_health: Callable[[], None]) -> str:
    """Returns the trouble that a health check finds, for the stats; empty: none."""
    try:
        check_health()
    except EngineDead as trouble:
        return trouble.message
    return ""
