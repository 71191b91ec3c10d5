"""What a replica says of its health, how quickly Serve believes it, and what an ingress makes of it."""

import asyncio

import pytest

from pipeline.errors import EngineDead
from pipeline.text.isolation.frontend import TextStats
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file
from serve.deployments.background_tasks import Background, trouble_of
from serve.deployments.text_normalizer import together
from serve.remote.version_pipelines import fullest_gpu, is_well, trouble_in
from serve.resilience.autoscaling import TextLoad

NOTICED_S = 12.0
FAILURES = 3  # health checks in a row, Serve's own constant
JITTER = 1.1  # on the period, likewise

FILES = sorted(path for path in (PROJECT / "configs").glob("*.yaml") if path.name != "voices.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_replica_that_hangs_is_noticed_within_12_seconds(path):
    """A check begins a period after the one before, or at once when that one ran into its timeout."""
    file = check_file(path)
    for deployment in file.document["applications"][0]["deployments"]:
        period_s, timeout_s = deployment["health_check_period_s"], deployment["health_check_timeout_s"]
        assert JITTER * period_s + FAILURES * max(timeout_s, JITTER * period_s) <= NOTICED_S, deployment["name"]
    engine, vocoder = file.app.pipeline.engine, file.app.pipeline.vocoder
    for limit_s in (engine.round_timeout_s, vocoder.call_timeout_s):
        assert limit_s + FAILURES * JITTER * 1.0 <= NOTICED_S


def test_a_background_task_that_ends_is_told_by_name():
    async def run() -> None:
        background = Background()
        background.start("waits", asyncio.sleep(3600))
        await asyncio.sleep(0)
        background.check()

        async def fails() -> None:
            raise ValueError("a client's words")

        background.start("fails", fails())
        await asyncio.sleep(0.01)
        with pytest.raises(EngineDead, match=r"fails ended \(ValueError\)") as dead:
            background.check()
        assert "words" not in dead.value.message

    asyncio.run(run())


@pytest.mark.parametrize("how", ["cancelled", "ended"])
def test_a_background_task_has_no_good_end(how):
    async def run() -> None:
        background = Background()
        background.start("short", asyncio.sleep(3600 if how == "cancelled" else 0))
        if how == "cancelled":
            background._tasks[0].cancel()
        await asyncio.sleep(0.01)
        with pytest.raises(EngineDead, match="short"):
            background.check()

    asyncio.run(run())


def test_trouble_is_what_the_health_check_says():
    def dead() -> None:
        raise EngineDead("the loop has ended")

    assert trouble_of(lambda: None) == ""
    assert trouble_of(dead) == "the loop has ended"


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


def test_several_text_workers_of_a_replica_are_told_as_one():
    one = TextStats(waiting=2, asked_s=0.5, answers=10, read_s=0.01, busy_s=3.0, restarts=1)
    two = TextStats(waiting=1, asked_s=0.0, answers=5, read_s=0.02, busy_s=1.0, restarts=0)
    assert together([one, two]) == TextStats(waiting=3, asked_s=0.5, answers=15, read_s=0.02, busy_s=4.0, restarts=1)


def test_a_text_replicas_load_is_the_time_its_workers_were_reading():
    load = TextLoad()
    assert load.measure({"busy_s": 5.0, "waiting": 0, "read_s": 0.01}, 100.0).busy == 0.0
    now = load.measure({"busy_s": 5.5, "waiting": 4, "read_s": 0.01}, 102.0)
    assert now.busy == pytest.approx(0.25)
    assert now.backlog_s == pytest.approx(0.04)
    assert load.measure({"busy_s": 15.5, "waiting": 0, "read_s": 0.01}, 103.0).busy == 1.0
