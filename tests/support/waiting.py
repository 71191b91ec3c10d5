"""Waiting: until something has come true, however long a crowded machine takes."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import requests

POLL_S = 0.01


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> float:
    """Seconds until the condition held; fails the test when it never does."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "it never came true"
        time.sleep(POLL_S)
    return time.monotonic() - began


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """As wait_until(), while other tasks of the loop go on."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "it never came true"
        await asyncio.sleep(POLL_S)


def is_ready(url: str) -> bool:
    """Whether a service answers there, and says that it is ready."""
    with suppress(requests.RequestException):
        return requests.get(f"{url}/ready", timeout=5).status_code == 200
    return False
