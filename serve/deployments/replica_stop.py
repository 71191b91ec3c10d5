"""Replica stop: tells the conversations of an ingress replica that Serve has begun to stop it.

In:    Serve's own state of this replica
Out:   Conversations.leave()
Owns:  nothing
Never: admission: Serve sends a replica that stops no new requests, and waits for those it has

Serve calls nothing of a deployment before its requests have ended, and a conversation may never end by itself. So the flag of
Serve's replica is read, which is private: the release of Ray is pinned, and tests/integration/disruptive/test_rolling.py fails
without it.
"""

import asyncio

from ray._private import worker

from serve.speech.conversation.conversation import Conversations

LOOK_S = 0.5


async def leave_when_stopped(conversations: Conversations) -> None:
    """Tells the conversations when Serve stops this replica; looks every LOOK_S, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        if is_stopping():
            conversations.leave()


def is_stopping() -> bool:
    """True from the moment when Serve begins to stop the replica of this process; False where there is none."""
    here = worker.global_worker
    replica = here.actors.get(here.actor_id) if here.connected else None
    return bool(getattr(getattr(replica, "_replica_impl", None), "_shutting_down", False))
