"""Replicas: which ends count against a version, what its probes report, and builds of one version that differ."""

import asyncio
import logging

import pytest

from pipeline.config import PipelineConfig
from pipeline.errors import (
    AtCapacity,
    AudioFault,
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    NonFiniteOutput,
    StageAsleep,
    StageUnavailable,
)
from pipeline.spec import STEPS_PER_SECOND
from serve.config.model_versions import versions_of
from serve.resilience.rollout import Rollout
from serve.stages.pipelines import is_its_failure
from serve.stages.replicas import Builds, Replicas, fullest_gpu, is_well, trouble_in
from tests.support.factories import make_report
from tests.support.handles import local_handle


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (NonFiniteOutput("x"), True),
        (EngineDead("x"), True),
        (StageUnavailable("x", retry_after_s=1.0), True),
        (StageAsleep("x", retry_after_s=1.0), False),
        (DeadlineExceeded("x"), True),
        (AtCapacity("x", retry_after_s=1.0), False),
        (AudioFault("x"), False),
        (InvalidRequest("x"), False),
        (asyncio.CancelledError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_version_answers_for_its_numbers_and_its_time_not_for_clients_and_crowds(error, counts):
    assert is_its_failure(error) is counts


def test_a_probe_finds_silence_and_full_memory():
    assert trouble_in({"a": [{"gpu_mem_percent": None}], "b": [{"gpu_mem_percent": 90.0}]}, 90) == ""
    assert "no answer from b" in trouble_in({"a": [{}], "b": []}, 90)
    assert "91 %" in trouble_in({"a": [{"gpu_mem_percent": 91.0}, {"gpu_mem_percent": 10.0}]}, 90)


def test_a_replica_with_trouble_is_no_answer_to_count_on():
    well, ill = {"trouble": "", "gpu_mem_percent": None}, {"trouble": "the loop has ended", "gpu_mem_percent": None}
    assert is_well(well)
    assert is_well({}), "a replica of the release before says nothing of it"
    assert not is_well(ill)
    assert trouble_in({"a": [well, ill]}, 90) == ""
    assert trouble_in({"a": [well], "b": [ill]}, 90) == "b: the loop has ended"


def test_the_fullest_gpu_counts_and_a_cpu_has_none():
    assert fullest_gpu([{"gpu_mem_percent": None}, {}]) is None
    assert fullest_gpu([]) is None
    assert fullest_gpu([{"gpu_mem_percent": 0.0}, {"gpu_mem_percent": None}]) == 0.0
    assert fullest_gpu([{"gpu_mem_percent": 12.5}, {"gpu_mem_percent": 80.1}]) == 80.1


# Builds: replicas of one version that would sound different are named, once per change.


def replicas(*fingerprints: str) -> list[dict[str, str]]:
    return [{"fingerprint": fingerprint} for fingerprint in fingerprints]


def test_replicas_that_differ_are_named_and_counted_and_logged_once_per_change(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    builds = Builds()
    builds.report("AcousticModel", replicas("native", "native"))
    assert (builds.differing, builds.count(["AcousticModel"]), caplog.records) == ({}, 1, [])
    for _ in range(3):
        builds.report("AcousticModel", replicas("torch", "native", "native"))
    assert builds.differing == {"AcousticModel": {"native": 2, "torch": 1}}
    assert (builds.count(["TextNormalizer", "AcousticModel"]), builds.count(["TextNormalizer"])) == (2, 1)
    builds.report("AcousticModel", replicas("torch", "native"))
    (line,) = caplog.records
    assert (line.levelname, "replicas of AcousticModel differ" in line.message) == ("WARNING", True)
    assert "{'native': 2, 'torch': 1}" in line.message
    builds.report("AcousticModel", [])
    assert builds.differing, "no answer says nothing"
    builds.report("AcousticModel", replicas("torch"))
    assert builds.differing == {}
    assert "replicas of AcousticModel are alike again" in caplog.text
    builds.report("AcousticModel", replicas("torch", "native"))
    assert len(caplog.records) == 3


def test_a_replica_of_the_release_before_which_tells_no_fingerprint_does_not_count():
    builds = Builds()
    builds.report("Vocoder", [{}, {"fingerprint": "native"}])
    assert (builds.differing, builds.count(["Vocoder"])) == ({}, 1)


def test_the_load_is_that_of_the_fullest_queue_and_of_the_slowest_engine():
    versions, handle = versions_of(PipelineConfig(), {}), local_handle()
    replicas, table = Replicas(Rollout(versions), dict.fromkeys(("AcousticModel", "TextNormalizer"), handle), 1.0), handle.table
    table.set_replicas(["one", "two"])
    for name, waiting in (("one", 0), ("two", versions[0].pipeline.engine.max_waiting // 2)):
        table.report(make_report(name, waiting=waiting))
    assert replicas.load() == (0.5, 0.0, 0.0)
    table.report(make_report("one", listened_s=1.0, listened_steps=94))
    table.report(make_report("two", listened_s=3.0, listened_steps=94))
    assert replicas.load() == (0.0, 3.0, 94 / STEPS_PER_SECOND)
    assert replicas.load() == (0.0, 0.0, 0.0), "nothing was spoken since"
