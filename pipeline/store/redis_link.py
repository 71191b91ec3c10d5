"""RedisLink: connections with time limits that notice when Redis is unreachable, and know a refusal from a silence.

In:    a URL, calls of Redis
Out:   answers, or None while Redis is away; why it is
Owns:  the connection pools, and the time from which Redis is called again
Never: a second try: a write without an answer may have happened, so the caller decides; the client's library, some 10 MB of
       every process, before there is a Redis to talk to

A call ends in one of four ways: an answer; no answer; a refusal whose reason is known (read only, full, wrong password ...);
a defect, which is raised as it is. A question that is late is not cut off: it may have had to connect first, and the connection
serves the next ones.
"""

import asyncio
import importlib
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

LOG = logging.getLogger("ray.serve.chattts")

T = TypeVar("T")

PASSWORD_VARIABLE = "CHATTTS_REDIS_PASSWORD"  # of each Redis whose URL has none
SILENCE = "does not answer"
FULL = "OOM"
LOGIN = "refuses the user or password of its URL, or wants one"
CLUSTER = "belongs to a cluster, which is not supported: name a single server"
REFUSALS = {
    FULL: "has no memory left (maxmemory)",
    "READONLY": "takes no writes: it is a replica",
    "MISCONF": "takes no writes: it cannot save to its disk",
    "NOREPLICAS": "takes no writes: too few replicas follow it (min-replicas-to-write)",
    "MASTERDOWN": "is a replica that has lost its primary",
    "LOADING": "is still loading its data",
    "BUSY": "is busy with a script",
    "NOAUTH": LOGIN,
    "WRONGPASS": LOGIN,
    "NOPERM": "does not permit this user what is needed (ACL)",
    "MOVED": CLUSTER,
    "ASK": CLUSTER,
    "TRYAGAIN": CLUSTER,
    "CLUSTERDOWN": CLUSTER,
    "CROSSSLOT": CLUSTER,
}
"""why Redis refuses, by the first word of its answer"""
PHRASES = {
    "max number of clients": "takes no more connections (maxclients)",
    "DB index is out of range": "has no database of this number",
    "invalid DB index": "has no database of this number",
    "CERTIFICATE_VERIFY_FAILED": "has a certificate that is not trusted (ssl_ca_certs=FILE in its URL names who signed it)",
}
CLASSES = {
    "OutOfMemoryError": FULL,
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
    "NoPermissionError": "NOPERM",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "ClusterCrossSlotError": "CROSSSLOT",
    "MasterDownError": "MASTERDOWN",
}
"""the client's exceptions that no longer have the first word"""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a call had no result."""

    reason: str
    """completes `Redis ...`, for people"""
    is_refusal: bool = False
    """Redis answered: nothing was done"""
    is_full: bool = False
    was_sent: bool = True
    """False: there was no connection, so nothing can have been done"""


def trouble_of(error: Exception) -> Trouble | None:
    """Returns what an exception of a call means; None: a defect, of this program or of what it talks to."""
    words = str(error)
    code = CLASSES.get(type(error).__name__) or _first_word(words)
    if code:
        return Trouble(REFUSALS[code], is_refusal=True, is_full=code == FULL)
    if reason := next((reason for phrase, reason in PHRASES.items() if phrase in words), None):
        return Trouble(reason, is_refusal=True)
    library = _library("exceptions")
    if isinstance(error, library.InvalidResponse):
        return Trouble("is no Redis: its answers are not understood", is_refusal=True)
    if isinstance(error, (library.ConnectionError, library.TimeoutError, OSError, TimeoutError)):
        return Trouble(SILENCE, was_sent="connecting to" not in words)
    return None


def failures(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Returns what a client raises when Redis is away or refuses, and `others`."""
    return (_library("exceptions").RedisError, OSError, TimeoutError, *others)


def connect(url: str, *, connect_timeout_s: float, answer_timeout_s: float) -> Any:
    """Returns a redis.Redis that connects at its first question: the server may start later."""
    return _client("client", "retry", url, connect_timeout_s, answer_timeout_s)


class RedisLink:
    """Asynchronous client that answers None, at once, while Redis is away."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        answer_timeout_s: float,
        retry_after_s: float = math.inf,
        on_trouble: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            connect_timeout_s: of making a connection, which may take longer than a question waits.
            retry_after_s: time after a failure in which only probes are sent [s]; inf: until a probe succeeds.
            on_trouble: called with the reason when Redis goes away.
        """
        self.client = _client(
            "asyncio.client", "asyncio.retry", url, connect_timeout_s, answer_timeout_s, redis_connect_func=self._greet
        )
        self.errors = 0
        """failed questions since the start"""
        self.trouble = ""
        """why the latest failure happened, until there is an answer again"""
        self._retry_after_s = retry_after_s
        self._on_trouble = on_trouble
        self._clock = clock
        self._retry_at = -math.inf
        self._connections = 0  # made since the start
        self._late: set[asyncio.Future[Any]] = set()

    @property
    def is_away(self) -> bool:
        """True if Redis did not answer or refused, and is not asked yet."""
        return self._clock() < self._retry_at

    async def ask(
        self,
        question: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None,
        is_probe: bool = False,
        stands_alone: bool = False,
    ) -> T | None:
        """Returns the answer, or None if Redis is away, refuses, or does not answer in time.

        Args:
            timeout_s: longest wait; None: the client's own time limit per message.
            is_probe: ask although Redis is away; an answer ends that.
            stands_alone: a refusal says nothing about other questions.

        Raises:
            what is no trouble of Redis but a defect.
        """
        if self.is_away and not is_probe:
            return None
        task = asyncio.ensure_future(question())
        connections = self._connections
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        try:
            done, _ = await asyncio.wait((task,), timeout=timeout_s)
        finally:
            if not task.done():
                task.add_done_callback(lambda late: self._came_late(late, connections))
        if not done:
            self._failed(Trouble(SILENCE), stands_alone=False)
            return None
        try:
            answer = task.result()
        except Exception as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            self._failed(trouble, stands_alone=stands_alone and trouble.is_refusal)
            return None
        if is_probe:
            self._retry_at = -math.inf
        if not self.is_away:
            self.trouble = ""
        return answer

    async def close(self) -> None:
        """Closes the connections."""
        for late in tuple(self._late):
            late.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await self.client.aclose()

    async def _greet(self, connection: Any) -> None:
        await connection.on_connect()
        self._connections += 1

    def _came_late(self, late: "asyncio.Future[Any]", connections: int) -> None:
        """Asks again at once if what took so long was connecting."""
        error = None if late.cancelled() else late.exception()
        if error is None and not late.cancelled() and self._connections > connections and math.isfinite(self._retry_after_s):
            self._retry_at = -math.inf
        if isinstance(error, Exception) and trouble_of(error) is None:
            LOG.error("Redis: a question that nobody waits for failed", exc_info=error)

    def _failed(self, trouble: Trouble, *, stands_alone: bool) -> None:
        was_known = self.is_away or self.trouble == trouble.reason
        self.errors += 1
        self.trouble = trouble.reason
        if not stands_alone:
            self._retry_at = self._clock() + self._retry_after_s
        if not was_known:
            self._on_trouble(trouble.reason)


def _first_word(words: str) -> str:
    """Returns the known first word of Redis' answer; before Redis 7 a script puts it into the middle: `...: -OOM ...`."""
    first = words.partition(" ")[0]
    if first in REFUSALS:
        return first
    inner = words.rpartition(": -")[2].partition(" ")[0] if ": -" in words else ""
    return inner if inner in REFUSALS else ""


def _client(client: str, retry: str, url: str, connect_timeout_s: float, answer_timeout_s: float, **more: Any) -> Any:
    """Returns a client of either kind, which tries nothing a second time. A password in the URL wins over PASSWORD_VARIABLE."""
    never = _library(retry).Retry(_library("backoff").NoBackoff(), 0)
    more["password"] = os.environ.get(PASSWORD_VARIABLE) or None
    return _library(client).Redis.from_url(
        url, socket_connect_timeout=connect_timeout_s, socket_timeout=answer_timeout_s, retry=never, **more
    )


def _library(part: str) -> Any:
    return importlib.import_module(f"redis.{part}")
