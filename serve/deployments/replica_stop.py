"""Replica stop: tells the conversations and listeners of an ingress replica that Serve has begun to stop it.

In:    Serve's own state of this replica
Out:   calls of leave()
Owns:  nothing
Never: admission: Serve sends a replica that stops no new requests, and waits for those it has

Serve calls nothing of a deployment before its requests have ended, and a conversation may never end by itself. So the flag of
Serve's replica is read, which is private: the release of Ray is pinned, and tests/integration/disruptive/test_rolling.py fails
without it.
"""

import asyncio
from typing import Protocol

from ray._private import worker

LOOK_S = 0.5


class Leaver(Protocol):
    """What clients stay at for longer than for one request."""

    def leave(self) -> None:
        """Takes nothing new, and speaks what it has."""
        ...


async def leave_when_stopped(*leavers: Leaver) -> None:
    """Tells them when Serve stops this replica; looks every LOOK_S, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        if is_stopping():
            for leaver in leavers:
                leaver.leave()


def is_stopping() -> bool:
    """True from the moment when Serve begins to stop the replica of this process; False where there is none."""
    here = worker.global_worker
    replica = here.actors.get(here.actor_id) if here.connected else None
    return bool(getattr(getattr(replica, "_replica_impl", None), "_shutting_down", False))
