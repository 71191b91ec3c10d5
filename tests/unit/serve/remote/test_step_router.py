"""The routers of the stages, as Serve runs them: without its processes, with replicas that only count."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from pipeline.types import SchedulingParams
from serve.remote.step_router import StepRouter, WatchedRouter, router_config
from serve.stages import replica_table
from serve.stages.replica_table import ReplicaTable, Route, table_of
from tests.support.factories import make_prompt, make_report

ID = DeploymentID("AcousticModel", "chattts")


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_table, "_TABLES", {ID.name: ReplicaTable(draws=random.Random(3))})


class Replica:
    """A replica that has no calls."""

    max_ongoing_requests = 100
    node_id, availability_zone = "node", None

    def __init__(self, name: str) -> None:
        self.replica_id = ReplicaID(name, ID)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


def router_over(*names: str, kind: type[WatchedRouter] = StepRouter) -> Any:
    router: Any = kind(ID, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    router.initialize_state(**router_config(ID.name, by_steps=True).request_router_kwargs)
    router.update_replicas([Replica(name) for name in names])
    return router


def call(*arguments: object, client: str = "c") -> PendingRequest:
    return PendingRequest(
        args=list(arguments), kwargs={}, metadata=RequestMetadata(request_id=client, internal_request_id=client)
    )


async def assigned(router: Any, *calls: PendingRequest) -> list[str]:
    replicas = await asyncio.wait_for(asyncio.gather(*map(router._choose_replica_for_request, calls)), 5)
    return [replica.replica_id.unique_id for replica in replicas]


@pytest.mark.parametrize("kind", [StepRouter, WatchedRouter])
async def test_all_segments_of_one_request_are_assigned_at_once_with_an_empty_table(kind: type[WatchedRouter]):
    router = router_over("one", "two", "three", kind=kind)
    assert len(await assigned(router, *(call(make_prompt(), client="same") for _ in range(4)))) == 4


async def test_the_replica_that_would_be_soonest_gets_the_call_and_serves_count_decides_with_it():
    router, table = router_over("slow", "fast"), table_of(ID.name)
    table.report(make_report("slow", 0.02))
    table.report(make_report("fast", 0.01))
    prompt = replace(make_prompt(), scheduling=SchedulingParams(first_steps=20))
    assert await assigned(router, call(prompt)) == ["fast"]
    for _ in range(4):
        router.on_send_request(ReplicaID("fast", ID))
    assert await assigned(router, call(prompt)) == ["slow"]


@pytest.mark.parametrize("route", [Route(avoid=("fast",)), Route(build="b")], ids=["refused", "of a build"])
async def test_a_route_travels_with_the_call(route: Route):
    router, table = router_over("slow", "fast"), table_of(ID.name)
    table.report(make_report("slow", 0.02, build="b"))
    table.report(make_report("fast", 0.01))
    assert await assigned(router, call(make_prompt(), object(), 1.0, False, "", route)) == ["slow"]


async def test_calls_without_a_prompt_reach_every_replica():
    router = router_over("one", "two", "three")
    assert set(await assigned(router, *(call(client=str(number)) for number in range(60)))) == {"one", "two", "three"}


async def test_the_table_knows_the_replicas_as_serve_does():
    router, table = router_over("one", "two"), table_of(ID.name)
    assert (table.has_other(Route(avoid=("one",))), table.is_empty) == (True, False)
    router.on_replica_actor_died(ReplicaID("two", ID))
    assert not table.has_other(Route(avoid=("one",)))
    router.update_replicas([])
    assert table.is_empty
