"""Stage handle: how an ingress calls a stage, whichever process the stage is in.

In:    the name of a method of the stage, its arguments
Out:   answers; SynthesisError, whose kind says whether another replica may be tried
Owns:  which failure is the death of a replica
Never: Ray: serve/remote/remote_handle.py implements it
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from pipeline.errors import EngineDead, SynthesisError
from serve.stages.replica_table import ReplicaTable


class ReplicaDied(EngineDead):
    """A replica has died while it worked on a call. `replica` is its unique id."""

    def __init__(self, message: str, *, replica: Any) -> None:
        super().__init__(message)
        self.replica = replica


class StageHandle(Protocol):
    """The replicas of one stage."""

    table: ReplicaTable
    """what this process knows of them"""

    async def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Returns the answer of one replica.

        Raises:
            SynthesisError: ReplicaDied or another EngineDead: a second call would reach another replica, if there is one.
        """
        ...

    def stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """Yields the items of one replica; closing it ends its work. Raises what `ask` raises."""
        ...

    async def ask_all(self, method: str) -> list[Any]:
        """Returns the answers of all replicas that answer in time: one that hangs does not hide the others."""
        ...

    @property
    def is_asleep(self) -> bool:
        """True if the stage may be without replicas, and is, as far as this process knows."""
        ...


def raised(answer: Any) -> Any:
    """Returns an answer of a stage; raises it if it is an error that travelled as a value."""
    if isinstance(answer, SynthesisError):
        raise answer
    return answer
