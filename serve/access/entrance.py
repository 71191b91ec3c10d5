"""Entrance: how a request or a socket was let in, which its speeches go on to use.

In:    speeches that begin, refusals of further ones
Out:   what ends a speech; whether a refused one may try again
Owns:  whether something is spoken in its stream
Never: counts of a key, which are serve/access/quotas.py's
"""

import asyncio
from collections.abc import Callable

from serve.errors import ApiError

Release = Callable[[], object]
"""gives back what was taken; does not wait"""


class Entrance:
    """How a request or a socket was let in: it took one request of its key's rate and, with a stream, one of its streams."""

    def __init__(self, *, stream: bool) -> None:
        self.is_new = True
        """until the first speech uses it"""
        self._free = asyncio.Event()
        self._has_stream = stream
        if stream:
            self._free.set()

    @property
    def has_free_stream(self) -> bool:
        """True if it has a stream in which nothing is spoken."""
        return self._free.is_set()

    def occupy(self) -> Release:
        """Speaks in its stream. Returns what frees it."""
        self.is_new = False
        self._free.clear()
        return self._free.set if self._has_stream else lambda: None

    async def has_waited(self, refusal: ApiError, until: float) -> bool:
        """Waits for what a further speech was refused for; False: that would take too long.

        Args:
            until: how long it waits for the rate, by the loop's clock.
        """
        if refusal.spec.code == "too_many_concurrent_requests" and self._has_stream:
            await self._free.wait()
            return True
        wait_s = refusal.spec.retry_after_s or 0.0
        if refusal.spec.code != "rate_limited" or asyncio.get_running_loop().time() + wait_s > until:
            return False
        await asyncio.sleep(wait_s)
        return True
