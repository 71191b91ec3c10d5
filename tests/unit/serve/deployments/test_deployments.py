"""Replicas as they are built: an ingress over handles whose calls run here, its background tasks, a text stage's workers."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import redis

from pipeline.checkpoint.capabilities import ALL_CAPABILITIES
from pipeline.engine.engine import EngineStats
from pipeline.errors import AtCapacity, EngineDead, StageAsleep
from pipeline.text.isolation.isolated_frontend import TextStats
from pipeline.types import Lane, Prompt, SamplingParams
from serve.app import exposure, exposure_of_this_cluster
from serve.config.app_config import AppConfig, TracingConfig, read_app_config
from serve.ingress import ingress_setup
from serve.ingress.ingress_replica import IngressReplica
from serve.observability.tracing import Tracing
from serve.remote.replica import new_series
from serve.speech.events import Finished
from serve.speech.job import RequestContext
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import open_speech
from serve.stages.acoustic_stage import AcousticStage
from serve.stages.background_tasks import Background, trouble_of
from serve.stages.replica_context import ReplicaContext
from serve.stages.text_stage import TextStage, together
from serve.stages.vocoder_stage import VocoderStage
from tests.support.fakes import PromptMaker, StepMaker, ToneDecoder
from tests.support.handles import Blocks, local_handle, text_handle, with_least
from tests.support.services import RedisServer
from tests.support.waiting import until

CONTEXT = ReplicaContext("r1", new_series)


def answering(value: object) -> Callable[[], Awaitable[object]]:
    async def answer() -> object:
        return value

    return answer


def handles(config: AppConfig) -> dict[str, object]:
    text, acoustic, vocoder, version = PromptMaker(), StepMaker(), ToneDecoder(), config.versions[0]

    def generate(prompt: Prompt, sampling: SamplingParams, timeout_s: float, admitted: bool, *_: object) -> Blocks:
        return Blocks(acoustic.generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted))

    return {
        "TextNormalizer": text_handle(text, capabilities=answering({version.id: ALL_CAPABILITIES})),
        version.acoustic: local_handle(generate=generate, speakers=answering((768, None)), fingerprint=answering("one")),
        version.vocoder: local_handle(traits=vocoder.traits, feed=lambda batch, trace: vocoder.feed(batch)),
    }


async def test_a_replica_is_built_speaks_its_first_words_and_names_its_work():
    config = read_app_config({"degrade": {"steps": []}})

    parts = await ingress_setup.build_parts(CONTEXT, config, handles(config), None)
    assert await ingress_setup.speak_first_words(parts.services.speech) > 0
    assert parts.services.speech.admission.capacity == config.limits.max_in_flight
    names = []
    for name, work in ingress_setup.background_work(CONTEXT, config, parts):
        names.append(name)
        work.close()
    follows = ["voices", "lexicons", "keys", "resume tokens", "writes", "metrics", "metrics of jobs", "purges"]
    assert names == [*follows, "fingerprints", "silent stages", "jobs", "conversations"]


async def test_a_stage_that_sleeps_is_no_trouble_and_the_refused_wake_it():
    config = read_app_config({"degrade": {"steps": []}})
    version, may_start = config.versions[0], asyncio.Event()
    deployed: dict[str, Any] = handles(config)

    async def start() -> dict[str, object]:
        await may_start.wait()
        acoustic.table.set_replicas(["replica"])
        return {}

    parts = await ingress_setup.build_parts(CONTEXT, config, deployed, None)
    acoustic = with_least(deployed[version.acoustic], 0)
    acoustic.table.set_replicas([])
    cast(Any, acoustic._handle).stats = SimpleNamespace(remote=start)
    speech, status, replicas_ = parts.services.speech, parts.status, parts.replicas
    assert status.wakefulness() == {version.acoustic: "asleep"}
    body = SpeechBody(input="Hello there.", voice=None)
    for _ in range(2):
        with open_speech(speech, RequestContext("one")) as session, pytest.raises(StageAsleep):
            await session.accept(body)
    with pytest.raises(StageAsleep):
        await parts.services.voices.maker._encoder.encode(np.zeros(8, np.float32))
    assert status.wakefulness() == {version.acoustic: "waking"}
    assert version.acoustic not in await replicas_.unresponsive()
    with open_speech(speech, RequestContext("two")) as session:
        accepted = asyncio.create_task(session.accept(body.model_copy(update={"deadline_ms": 600_000})))
        await asyncio.sleep(0)
        may_start.set()
        job = await accepted
        async with aclosing(session.speak(job)) as events:
            assert [type(event) async for event in events][-1] is Finished
    assert status.wakefulness() == {}
    assert {breaker.opened for breaker in replicas_.breakers.values()} == {0}


async def test_where_every_replica_has_just_refused_a_request_is_refused_before_it_is_paid_for():
    config = read_app_config({"degrade": {"steps": []}})
    deployed: dict[str, Any] = handles(config)
    speech = (await ingress_setup.build_parts(CONTEXT, config, deployed, None)).services.speech
    table, body = deployed[config.versions[0].acoustic].table, SpeechBody(input="Hello there.", voice=None)
    table.set_replicas(["one"])
    table.refuse("one", Lane.STANDARD, 2.0)
    with open_speech(speech, RequestContext("one")) as session:
        with pytest.raises(AtCapacity, match="every replica"):
            await session.accept(body)
        assert session._recorder.job is None, "it is counted, and has no lines of its own in the log"
        await session.accept(body.model_copy(update={"seed": 7, "cache": "default"}))  # the cache may have it


async def test_the_operators_status_has_what_the_page_shows():
    grafana = "https://grafana.example/d/chattts"
    config = read_app_config({"http": {"grafana": grafana}})

    parts = await ingress_setup.build_parts(CONTEXT, config, handles(config), None)
    parts.services.speech.observer.rejected("overloaded")
    (state, services) = await parts.status.health(), parts.services
    assert services.dashboards == {"grafana": grafana}
    assert services.recent.summary()["errors"] == {"overloaded": 1}
    assert {"text", "acoustic", "vocoder", "stores"} <= state.keys()
    assert {"memory_hits", "shared_hits", "joined", "misses"} <= state["cache"].keys()
    assert (state["degrade"]["level"], len(state["degrade"]["active_steps"]), state["quarantine"]["quarantined"]) == (0, 0, 0)
    assert {breaker["state"] for breaker in state["breakers"].values()} == {"closed"}
    (version,) = state["versions"].values()
    assert {"share", "state", "requests", "failed", "first_audio_s"} <= version.keys()
    assert {"slots", "slots_usable", "slots_used", "waiting", "round_s"} <= {field.name for field in fields(EngineStats)}


async def test_the_state_of_the_parts_is_collected_once_for_all_who_ask_and_again_later():
    config = read_app_config({})
    status = (await ingress_setup.build_parts(CONTEXT, config, handles(config), None)).status
    leaving = asyncio.create_task(status.health())
    await asyncio.sleep(0)
    leaving.cancel()
    first, *others = await asyncio.gather(*(status.health() for _ in range(50)))
    assert all(state is first for state in others)
    assert await status.health() is not first


async def test_a_replica_that_stops_leaves_nothing_open(own_redis: RedisServer, tmp_path: Path):
    tracing = {"exporter": "file", "folder": str(tmp_path / "traces")}
    config = read_app_config({"voices": {"store": own_redis.url}, "cache": {"redis": own_redis.url}, "tracing": tracing})
    replica, before = IngressReplica(), asyncio.all_tasks()
    await replica.start(CONTEXT, config, handles(config), None)
    gc.unfreeze()
    with replica.services.speech.tracing.request("r", None), redis.Redis.from_url(own_redis.url) as client:
        await until(lambda: len(client.client_list()) > 3)  # the store's, the cache's, that of the quotas, and this one
    await replica.stop()
    assert asyncio.all_tasks() == before
    with redis.Redis.from_url(own_redis.url) as client:
        await until(lambda: len(client.client_list()) == 1)
    (file,) = (tmp_path / "traces").iterdir()
    assert '"speech"' in file.read_text(), "what ended last is exported too"
    await replica.check_health()


@pytest.mark.parametrize("kind", [TextStage, AcousticStage, VocoderStage])
def test_a_stage_that_stops_exports_its_spans(kind: type[Any], tmp_path: Path):
    stage = kind()
    stage._tracing = Tracing(TracingConfig(exporter="file", folder=str(tmp_path)), "stage", "r1")
    with stage._tracing.request("r", None):
        pass
    del stage
    (file,) = tmp_path.iterdir()
    assert '"speech"' in file.read_text()


@pytest.mark.parametrize("end", ["fails", "is cancelled", "ends"])
async def test_a_background_task_has_no_good_end_and_is_reported_by_name(end: str):
    async def work() -> None:
        await asyncio.sleep(0)
        if end != "ends":
            raise ValueError("a client's words") if end == "fails" else asyncio.CancelledError

    background = Background()
    background.start("waits", asyncio.sleep(3600))
    background.start("short", work())
    background.check()
    await asyncio.sleep(0.01)
    with pytest.raises(EngineDead, match=r"short ended \(ValueError\)" if end == "fails" else "short") as dead:
        background.check()
    assert "words" not in dead.value.message


def test_trouble_is_what_the_health_check_says():
    def dead() -> None:
        raise EngineDead("the loop has ended")

    assert trouble_of(lambda: None) == ""
    assert trouble_of(dead) == "the loop has ended"


@pytest.mark.parametrize(
    ("address", "requires_token", "is_exposed"),
    [
        ("192.0.2.2", False, True),
        ("2001:db8::1", False, True),
        ("192.0.2.2", True, False),
        ("127.0.0.1", False, False),
        ("::1", False, False),
    ],
)
def test_the_risk_is_named_where_there_is_one(address: str, requires_token: bool, is_exposed: bool):
    sentence = exposure(address, requires_token=requires_token)
    assert (sentence is not None) == is_exposed
    if sentence is not None:
        assert f"any client that reaches {address} can run any code" in sentence
        assert "RAY_AUTH_MODE=token" in sentence


def test_without_a_cluster_there_is_nothing_to_say():
    assert exposure_of_this_cluster() is None


def test_several_text_workers_of_a_replica_are_reported_as_one():
    first = TextStats(waiting=2, asked_s=0.5, answers=10, read_s=0.01, busy_s=3.0, restarts=1)
    two = TextStats(waiting=1, asked_s=0.0, answers=5, read_s=0.02, busy_s=1.0, restarts=0)
    assert together([first, two]) == TextStats(waiting=3, asked_s=0.5, answers=15, read_s=0.02, busy_s=4.0, restarts=1)
