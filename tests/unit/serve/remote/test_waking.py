"""Cold start: who is refused, who waits, and what Serve is asked for meanwhile; and what Serve's own parts say of replicas."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import worker
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
from serve.config.app_config import ConversationsConfig
from serve.ingress import ingress_setup
from serve.remote.ray_private import is_stopping
from serve.remote.remote_handle import RemoteHandle
from serve.remote.step_router import router_config
from serve.speech.conversation.conversation import Conversation, Conversations
from serve.speech.job import RequestContext
from serve.stages import replica_table
from serve.stages.cold_start import FIRST_GUESS_S, LEAST_S, ColdStarts, Wakefulness
from serve.stages.replica_table import table_of
from tests.support.clock import HeldClock
from tests.support.fakes import Speaker, make_speech_services
from tests.support.handles import local_handle, with_least
from tests.support.waiting import until


class Deployment:
    """A deployment whose first replica answers when `start` is set, and stays if it `comes`."""

    def __init__(self, replicas: int = 0, *, may_sleep: bool = True, comes: bool = True) -> None:
        self.calls = 0
        self.comes = comes
        self.start = asyncio.Event()
        self.handle = with_least(local_handle(stats=self._answer), int(not may_sleep))
        self.set_replicas(replicas)

    def set_replicas(self, count: int) -> None:
        self.handle.table.set_replicas(map(str, range(count)))

    async def _answer(self) -> dict[str, Any]:
        self.calls += 1
        await self.start.wait()
        if self.comes:
            self.set_replicas(1)
        return {}


def waking(give_up_s: float = 300.0, **deployments: Deployment) -> tuple[ColdStarts, HeldClock]:
    clock = HeldClock(100.0)
    return ColdStarts({name: deployment.handle for name, deployment in deployments.items()}, give_up_s, clock=clock), clock


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("replicas", "may_sleep"), [(1, True), (0, False)], ids=["has one", "always should"])
async def test_what_is_awake_is_not_asked_for(replicas: int, may_sleep: bool):
    text = Deployment(replicas, may_sleep=may_sleep)
    wakes, _ = waking(text=text)
    wakes.check(["text"])
    assert await wakes.wait(["text"], 0.0) == 0
    assert (wakes.state("text"), text.calls) == (Wakefulness.AWAKE, 0)


def test_as_long_as_nothing_is_known_of_a_deployment_it_counts_as_awake():
    assert ColdStarts({"text": with_least(local_handle(), 0)}, 1.0).is_awake("text")
    unknown = local_handle()
    unknown.table.set_replicas([])
    assert ColdStarts({"text": unknown}, 1.0).is_awake("text")


async def test_the_refused_leave_one_call_for_each_stage_and_are_told_what_is_left():
    text, acoustic = Deployment(), Deployment()
    wakes, clock = waking(text=text, acoustic=acoustic, vocoder=Deployment(replicas=1))
    assert wakes.state("text") is Wakefulness.ASLEEP
    for passed, remaining_s in ((0.0, FIRST_GUESS_S), (20.0, FIRST_GUESS_S - 20), (3600.0, LEAST_S)):
        clock.now = 100.0 + passed
        for _ in range(3):
            with pytest.raises(StageAsleep, match="text and acoustic had") as refused:
                wakes.check(["text", "acoustic", "vocoder"])
        assert refused.value.retry_after_s == remaining_s
        await soon()
    assert (text.calls, acoustic.calls, wakes.state("text")) == (1, 1, Wakefulness.WAKING)
    text.start.set()
    await soon()
    assert wakes.awake(["text", "acoustic", "vocoder"]) == ["text", "vocoder"]


async def test_the_next_wake_is_expected_to_take_as_long_as_the_last():
    acoustic = Deployment()
    wakes, clock = waking(acoustic=acoustic)
    with pytest.raises(StageAsleep):
        wakes.check(["acoustic"])
    await soon()
    clock.now += 8.0
    acoustic.start.set()
    await soon()
    wakes.check(["acoustic"])
    acoustic.set_replicas(0)
    acoustic.start.clear()
    with pytest.raises(StageAsleep) as refused:
        wakes.check(["acoustic"])
    assert refused.value.retry_after_s == 8.0


async def test_a_request_waits_for_waking_stages_within_its_deadline_alone():
    text, acoustic = Deployment(), Deployment()
    wakes, clock = waking(text=text, acoustic=acoustic)
    with pytest.raises(StageAsleep):
        await wakes.wait(["text", "acoustic"], FIRST_GUESS_S - 1)
    waits = asyncio.create_task(wakes.wait(["text", "acoustic"], 60.0))
    await soon()
    text.start.set()
    await soon()
    assert not waits.done()
    clock.now += 12.0
    acoustic.start.set()
    assert await waits == 12.0
    assert (text.calls, acoustic.calls) == (1, 1)


async def test_a_client_that_leaves_cancels_no_waking():
    text = Deployment()
    wakes, clock = waking(text=text)
    short = asyncio.create_task(wakes.wait(["text"], FIRST_GUESS_S))
    long = asyncio.create_task(wakes.wait(["text"], 600.0))
    await soon()
    short.cancel()
    await soon()
    assert wakes.state("text") is Wakefulness.WAKING
    clock.now += 1.0
    text.start.set()
    assert await long == 1.0


async def test_a_wait_that_becomes_too_long_is_refused_after_all():
    text = Deployment(comes=False)
    wakes, clock = waking(text=text)
    waits = asyncio.create_task(wakes.wait(["text"], 60.0))
    await soon()
    clock.now += 45.0
    text.start.set()
    with pytest.raises(StageAsleep) as refused:
        await waits
    assert refused.value.retry_after_s > 15.0


async def test_a_call_that_fails_or_takes_too_long_is_repeated_by_the_next_request():
    text = Deployment()
    wakes, _ = waking(give_up_s=0.001, text=text)
    for calls in (1, 2):
        with pytest.raises(StageAsleep):
            wakes.check(["text"])
        assert wakes.state("text") is Wakefulness.WAKING
        await until(lambda: wakes.state("text") is Wakefulness.ASLEEP)
        assert text.calls == calls


# Through Serve's own router and autoscaler: one call that waits is what they take for demand.


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
    router = router_config(ID.name, by_steps=True)
    return DeploymentConfig(autoscaling_config=scaling, request_router_config=router)


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
async def test_serves_router_says_who_sleeps_and_one_call_that_waits_starts_a_replica(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replica_table, "_TABLES", {})
    controller, config = Controller(), config_of(0)
    router, autoscaler = router_to(controller), Autoscaler(config)
    handle = handle_over(router)
    remote = RemoteHandle(handle, table_of(ID.name))
    remote._handle = handle  # whose router is this test's
    assert not remote.is_asleep, "nothing is known yet"
    router._asyncio_router.update_deployment_config(config)
    router._asyncio_router.update_deployment_targets(DeploymentTargetInfo(is_available=True, running_replicas=[]))
    assert remote.is_asleep
    assert autoscaler.hears(controller.reports) == 0
    waking = ColdStarts({ID.name: remote}, 300.0)
    for _ in range(3):
        with pytest.raises(StageAsleep):
            waking.check([ID.name])
    await until(lambda: controller.reports)
    assert router._asyncio_router._metrics_manager.num_queued_requests == 1, "one call, however many were refused"
    await until(lambda: autoscaler.hears(controller.reports) == 1)  # the first report may be of a moment before
    assert waking.state(ID.name) is Wakefulness.WAKING
    router._asyncio_router.update_deployment_config(config_of(1))
    assert not remote.is_asleep, "it always should have one"


# A replica that stops.


def serving(*, stops: bool) -> SimpleNamespace:
    """A process of Ray with Serve's replica in it."""
    replica = SimpleNamespace(_replica_impl=SimpleNamespace(_shutting_down=stops))
    return SimpleNamespace(connected=True, actor_id="a", actors={"a": replica})


def test_the_flag_is_that_of_serves_replica_in_this_process(monkeypatch: pytest.MonkeyPatch):
    assert not is_stopping(), "there is none"
    for stops in (False, True):
        monkeypatch.setattr(worker, "global_worker", serving(stops=stops))
        assert is_stopping() == stops


async def test_conversations_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "global_worker", serving(stops=True))
    monkeypatch.setattr(ingress_setup, "LOOK_S", 0.0)
    conversations = Conversations(ConversationsConfig())

    async def emit(event: object) -> None: ...

    services = make_speech_services(Speaker())
    conversation = Conversation(services, conversations.config, RequestContext("talk"), emit)
    with conversations.joined(conversation):
        looking = asyncio.create_task(ingress_setup.leave_when_stopped(is_stopping, conversations))
        await asyncio.wait_for(conversation.leaving.wait(), 20)
        looking.cancel()
