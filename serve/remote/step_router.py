"""Step router: Serve's request routers of the stages, for Serve's public interface of them (alpha).

In:    pending calls, whose arguments it reads; the table of replicas; Serve's count of calls per replica
Out:   the replicas in the order in which they are asked
Never: private names of Ray

Without FIFOMixin, Serve finds a pending call by the id of the client's request. All segments of a request share it, and of two
that wait at the same time the second is never assigned (Ray 2.60).
"""

import random
from typing import Any

from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from pipeline.types import Prompt
from serve.stages.replica_table import ANYWHERE, Route, table_of

BACKOFF = {"initial_backoff_s": 0.005, "backoff_multiplier": 1, "max_backoff_s": 0.02}


class WatchedRouter(FIFOMixin, RequestRouter):
    """Asks the less busy one of two replicas, and keeps the names of all in the table of replicas."""

    def initialize_state(self, **settings: Any) -> None:
        """Takes the settings of `router_config`."""
        self._table = table_of(settings["deployment"])
        self._by_name: dict[str, RunningReplica] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Takes the replicas that there are now."""
        super().update_replicas(replicas)
        self._rename()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forgets a replica at once."""
        super().on_replica_actor_died(replica_id)
        self._rename()

    def _rename(self) -> None:
        self._by_name = {replica.replica_id.unique_id: replica for replica in self.curr_replicas.values()}
        self._table.set_replicas(self._by_name)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns ranks of replicas; of one rank, Serve takes the replica with the fewest calls."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]


class StepRouter(WatchedRouter):
    """Asks the replica whose first audio would come soonest; calls without a prompt go to one of two."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """As WatchedRouter, a rank for each replica."""
        either = await super().choose_replicas(candidate_replicas, pending_request)
        prompt, route = _call_of(pending_request)
        if prompt is None or len(candidate_replicas) < 2:
            return either
        by_name, cache = self._by_name, self.replica_queue_len_cache
        names = self._table.order(
            prompt.scheduling.lane,
            prompt.scheduling.first_steps,
            lambda name: cache.get(by_name[name].replica_id) if name in by_name else None,
            route,
        )
        return [[by_name[name]] for name in names if name in by_name] or either


def _call_of(pending: PendingRequest | None) -> tuple[Prompt | None, Route]:
    arguments: list[Any] = [] if pending is None else [*pending.args, *pending.kwargs.values()]
    prompt = next((argument for argument in arguments if isinstance(argument, Prompt)), None)
    route = next((argument for argument in arguments if isinstance(argument, Route)), ANYWHERE)
    return prompt, route


def router_config(deployment: str, *, by_steps: bool) -> RequestRouterConfig:
    """Returns Serve's settings of the router of a stage.

    Args:
        by_steps: calls are routed by the steps that replicas have before them.
    """
    return RequestRouterConfig.model_validate(
        {
            "request_router_class": f"{__name__}:{'StepRouter' if by_steps else 'WatchedRouter'}",
            "request_router_kwargs": {"deployment": deployment},
            **BACKOFF,
        }
    )
