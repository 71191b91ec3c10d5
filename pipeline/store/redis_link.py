"""RedisLink: connections with time limits that notice when Redis is unreachable.

In:    a URL, calls of Redis
Out:   answers, or None while Redis is unreachable
Owns:  the connection pools, and the time from which Redis is called again
Never: a second try: a write without an answer may have happened, so the caller decides; the client's library, some 10 MB of
       every process, before there is a Redis to talk to
"""

import asyncio
import importlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

T = TypeVar("T")


def failures(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Returns what a client raises when Redis is away or refuses, and `others`."""
    return (_library("exceptions").RedisError, OSError, TimeoutError, *others)


def out_of_memory() -> type[Exception]:
    """Returns what a client raises when Redis has no room for a write."""
    error: type[Exception] = _library("exceptions").OutOfMemoryError
    return error


def connect(url: str, *, connect_timeout_s: float, answer_timeout_s: float) -> Any:
    """Returns a redis.Redis that connects at its first question: the server may start later."""
    return _client("client", "retry", url, connect_timeout_s, answer_timeout_s)


def url_without_password(url: str) -> str:
    """Returns scheme, host, port and database number, for logs."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class RedisLink:
    """Asynchronous client that answers None, at once, while Redis is away."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        answer_timeout_s: float,
        retry_after_s: float = math.inf,
        on_away: Callable[[Exception], None] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            retry_after_s: time after a failure in which only probes are sent [s]; inf: until a probe succeeds.
            on_away: called with the error when Redis goes away.
        """
        self.client = _client("asyncio.client", "asyncio.retry", url, connect_timeout_s, answer_timeout_s)
        self.errors = 0
        """failed questions since the start"""
        self._retry_after_s = retry_after_s
        self._on_away = on_away
        self._clock = clock
        self._retry_at = -math.inf

    @property
    def is_away(self) -> bool:
        """True if Redis did not answer, and is not asked yet."""
        return self._clock() < self._retry_at

    async def ask(self, question: Callable[[], Awaitable[T]], *, timeout_s: float | None, is_probe: bool = False) -> T | None:
        """Returns the answer, or None if Redis is away or does not answer in time.

        Args:
            timeout_s: longest wait; None: the client's own time limit per message.
            is_probe: ask although Redis is away; an answer ends that.
        """
        if self.is_away and not is_probe:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await question()
        except failures() as error:
            self._failed(error)
            return None
        if is_probe:
            self._retry_at = -math.inf
        return answer

    async def close(self) -> None:
        """Closes the connections."""
        await self.client.aclose()

    def _failed(self, error: Exception) -> None:
        was_away = self.is_away
        self.errors += 1
        self._retry_at = self._clock() + self._retry_after_s
        if not was_away:
            self._on_away(error)


def _client(client: str, retry: str, url: str, connect_timeout_s: float, answer_timeout_s: float) -> Any:
    """Returns a client of either kind, which tries nothing a second time."""
    never = _library(retry).Retry(_library("backoff").NoBackoff(), 0)
    return _library(client).Redis.from_url(
        url, socket_connect_timeout=connect_timeout_s, socket_timeout=answer_timeout_s, retry=never
    )


def _library(part: str) -> Any:
    return importlib.import_module(f"redis.{part}")
