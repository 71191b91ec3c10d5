"""Waking through Serve's own router and autoscaler, in this process: one call that waits is what they take for demand."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private import router as serve_router
from ray.serve._private.autoscaling_metrics_codec import decode_handle_flat, is_columnar
from ray.serve._private.autoscaling_state import AutoscalingStateManager
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, DeploymentTargetInfo
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.default_impl import create_init_handle_options
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve._private.utils import decompress_metric_report
from ray.serve.config import AutoscalingConfig
from ray.serve.handle import DeploymentHandle

from pipeline.errors import StageAsleep
from scripts.bench.settings import from_zero
from serve.remote.ray_private import has_no_replica
from serve.remote.waking import Wakefulness, Waking
from tests.support.waiting import until

ID = DeploymentID("AcousticModel", "chattts")


class Controller:
    """What a router tells its controller, which has nothing new for it."""

    def __init__(self) -> None:
        self.reports: list[bytes] = []
        self.record_autoscaling_metrics_from_handle = SimpleNamespace(remote=self.reports.append)
        silent = SimpleNamespace(_on_completed=lambda update: None)
        self.listen_for_change = SimpleNamespace(remote=lambda snapshots: silent)


class Autoscaler:
    """Serve's own, with a deployment that has no replica."""

    def __init__(self, config: DeploymentConfig) -> None:
        self._manager = AutoscalingStateManager()
        replica = ReplicaConfig.create(object)
        self._manager.register_deployment(ID, DeploymentInfo(config, replica, 0, "job"), 0)

    def hears(self, reports: list[bytes]) -> int:
        """How many replicas there should be, by the latest report."""
        for report in reports[-1:]:
            if is_columnar(report):
                self._manager.record_columnar_metrics_for_handle(decode_handle_flat(report))
            else:
                self._manager.record_request_metrics_for_handle(decompress_metric_report(report))
        return self._manager.get_decision_num_replicas("chattts", {ID: 0})[ID]


def config_of(min_replicas: int) -> DeploymentConfig:
    scaling = AutoscalingConfig.model_validate({**from_zero(600), "min_replicas": min_replicas, "metrics_interval_s": 0.05})
    return DeploymentConfig(autoscaling_config=scaling)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray in this process: who calls, and who shares a connection with other routers."""
    nobody = SimpleNamespace(get_actor_id=lambda: None, get_worker_id=lambda: "", current_actor=None)
    monkeypatch.setattr(serve_router.ray, "get_runtime_context", lambda: nobody)
    alone = SimpleNamespace(register=lambda router: None)
    monkeypatch.setattr(serve_router.SharedRouterLongPollClient, "get_or_create", lambda *_: alone)


def handle_over(router: Any) -> Any:
    return DeploymentHandle(
        ID.name, ID.app_name, init_options=create_init_handle_options(_run_router_in_separate_loop=False), _router=router
    )


def router_to(controller: Controller) -> Any:
    """A router as a replica has it for its handles."""
    return serve_router.CurrentLoopRouter(
        controller_handle=controller,
        deployment_id=ID,
        handle_id="handle",
        self_actor_id="actor",
        handle_source=DeploymentHandleSource.REPLICA,
        enable_strict_max_ongoing_requests=True,
        node_id="node",
        availability_zone=None,
        prefer_local_node_routing=False,
    )


@pytest.mark.usefixtures("apart")
def test_serves_router_says_who_sleeps_and_one_call_that_waits_starts_a_replica():
    async def test() -> None:
        controller, config = Controller(), config_of(0)
        router, autoscaler = router_to(controller), Autoscaler(config)
        handle = handle_over(router)
        assert not has_no_replica(handle), "nothing is known yet"
        router._asyncio_router.update_deployment_config(config)
        router._asyncio_router.update_deployment_targets(DeploymentTargetInfo(is_available=True, running_replicas=[]))
        assert has_no_replica(handle)
        assert autoscaler.hears(controller.reports) == 0
        waking = Waking({ID.name: handle}, 300.0)
        for _ in range(3):
            with pytest.raises(StageAsleep):
                waking.check([ID.name])
        await until(lambda: controller.reports)
        assert router._asyncio_router._metrics_manager.num_queued_requests == 1, "one call, however many were refused"
        await until(lambda: autoscaler.hears(controller.reports) == 1)  # the first report may be of a moment before
        assert waking.state(ID.name) is Wakefulness.WAKING
        router._asyncio_router.update_deployment_config(config_of(1))
        assert not has_no_replica(handle), "it always should have one"

    asyncio.run(test())
