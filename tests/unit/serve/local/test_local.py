"""The runtime of one process: its handles, its metrics, its part of a configuration, and how it ends."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pipeline.errors import AtCapacity, EngineDead, EngineFault, SynthesisError
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file, find_mistakes
from serve.local import local_service
from serve.local.local_handle import LocalHandle
from serve.local.local_service import LocalService
from serve.local.process_config import OF_RAY
from serve.local.prometheus import OF_REPLICA, Exposition
from serve.observability.metrics.definitions import METRICS, MetricType
from serve.observability.metrics.registry import MetricRegistry

BOX = PROJECT / "configs/box.yaml"


class Stage:
    """Answers as a stage does: a domain error is a value or is raised, a defect is raised."""

    def __init__(self) -> None:
        self.has_ended = False

    async def answer(self, value: object, *, trace: str = "") -> object:
        if isinstance(value, Exception) and not isinstance(value, SynthesisError):
            raise value
        return value if not trace else (value, trace)

    async def items(self, *values: object) -> AsyncGenerator[object, None]:
        try:
            for value in values:
                if isinstance(value, Exception) and not isinstance(value, SynthesisError):
                    raise value
                yield value
                await asyncio.sleep(0)
        finally:
            self.has_ended = True

    async def stats(self) -> dict[str, int]:
        return {"waiting": 0}


async def test_a_handle_answers_as_its_stage():
    handle = LocalHandle(Stage())
    assert await handle.ask("answer", 5) == 5
    assert await handle.ask("answer", 5, trace="t") == (5, "t")
    assert [item async for item in handle.stream("items", 1, 2)] == [1, 2]
    assert await handle.ask_all("stats") == [{"waiting": 0}]
    assert not handle.is_asleep


@pytest.mark.parametrize(
    ("failure", "kind"), [(AtCapacity("full", retry_after_s=1.0), AtCapacity), (RuntimeError("x"), EngineFault)]
)
async def test_errors_are_the_domains(failure: Exception, kind: type[Exception]):
    handle = LocalHandle(Stage())
    with pytest.raises(kind):
        await handle.ask("answer", failure)
    items = []
    with pytest.raises(kind):
        items += [item async for item in handle.stream("items", 1, failure)]


async def test_leaving_a_stream_ends_the_work_of_its_stage():
    stage = Stage()
    items = LocalHandle(stage).stream("items", 1, 2, 3)
    assert await anext(items) == 1
    await items.aclose()
    assert stage.has_ended


def test_prometheus_reads_every_metric_under_the_name_that_dashboards_use():
    exposition = Exposition("chattts")
    registries = [MetricRegistry(exposition.new_series(name, f"{name}#1")) for name in ("Ingress", "AcousticModel")]
    for registry in registries:
        for metric in METRICS:
            tags = dict.fromkeys(metric.tags, "x")
            if metric.type is MetricType.GAUGE:
                registry.set_gauge(metric, 2.0, **tags)
            elif metric.type is MetricType.COUNTER:
                registry.add(metric, 2.0, **tags)
            else:
                registry.observe(metric, 0.5, **tags)
    samples = [sample for family in text_string_to_metric_families(exposition.text().decode()) for sample in family.samples]
    names = {sample.name for sample in samples}
    for metric in METRICS:
        assert names & {metric.exported, f"{metric.exported}_total", f"{metric.exported}_bucket"}, metric.name
        if metric.type is MetricType.COUNTER:
            assert metric.exported in names, "Ray's exporter adds no ending"
    assert {sample.labels["deployment"] for sample in samples} == {"Ingress", "AcousticModel"}
    assert all(set(OF_REPLICA) <= sample.labels.keys() for sample in samples)


def test_the_shipped_file_is_for_one_process():
    file = check_file(BOX)
    assert file.is_one_process
    assert (file.listens, file.port) == ("127.0.0.1", 8000)


def of_box(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(BOX.read_text())
    return document | changes


@pytest.mark.parametrize("key", OF_RAY)
def test_a_key_of_ray_is_refused_with_the_reason(key: str):
    document = of_box()
    place, _, name = key.rpartition(".")
    (document["applications"][0] if place else document)[name] = {"a": 1}
    (mistake,) = find_mistakes(document)
    assert mistake == f"{key}: belongs to Ray Serve; with runtime: process {OF_RAY[key]}. Remove it"


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (of_box(runtime="ray"), "runtime: may be process"),
        (of_box(runtime=None), "runtime: may be process"),
        (of_box(htp_options={}), "htp_options: unknown key; did you mean http_options?"),
        (of_box(http_options={"port": 70_000}), "http_options.port: "),
        (of_box(http_options={"host": "0.0.0.0"}), "http_options.host: 0.0.0.0 can be reached by other machines"),
        (of_box(grpc_options={"port": 8000}), "grpc_options.port: 8000 is the port of http_options.port already"),
        (of_box(applications=[]), "applications: "),
    ],
)
def test_mistakes_are_named(document: dict[str, Any], sentence: str):
    (mistake,) = find_mistakes(document)
    assert mistake.startswith(sentence)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (EngineDead("the engine has died"), "the engine has died"),
        (KeyError("x"), "a check of its health failed (KeyError: 'x')"),
    ],
)
async def test_a_part_that_is_dead_ends_the_process(monkeypatch: pytest.MonkeyPatch, failure: Exception, reason: str):
    class Dead:
        async def check_health(self) -> None:
            raise failure

    ends: list[EngineDead] = []

    def end(death: EngineDead) -> None:
        ends.append(death)
        raise SystemExit

    monkeypatch.setattr(local_service, "HEALTH_PERIOD_S", 0.0)
    monkeypatch.setattr(local_service, "end_process", end)
    service = LocalService(check_file(BOX))
    service._handles = {"AcousticModel": LocalHandle(Dead())}
    with pytest.raises(SystemExit):
        await service._watch()
    assert [death.message for death in ends] == [reason]
