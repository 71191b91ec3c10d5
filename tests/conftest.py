"""Marks every test by its folder, puts folders in order, and gives the fixtures every folder shares.

Rings, each wider than the one before: `make check` runs the unit tests that are not slow, `make test` everything that guards a
promise, `make test-all` what is marked `nightly` too.
"""

import asyncio
import functools
import gc
import inspect
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # the GPU's kernels, run in Python; read when they are defined

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.paths import cache_home
from tests.support.effort import examples
from tests.support.english_checkpoint import write_english_checkpoint

# A property is wrong or right, not slow: how fast examples come is a matter of what else the machine does.
settings.register_profile("suite", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# Folders in their order: what starts clusters of its own comes before the session's cluster is up, what breaks that one last.
ORDER = (
    "unit",
    "parity",
    "gpu",
    "e2e",
    "integration",
    "integration/shared_app",
    "integration/second_app",
    "integration/disruptive",
)
NIGHTLY = "integration/disruptive"
CLUSTERS = ("integration", "e2e")
CLUSTER_TIMEOUT_S = 900  # what starts a cluster on a busy machine takes minutes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    ranks: dict[pytest.Item, int] = {}
    for item in items:
        folder = item.path.relative_to(root).parent.as_posix()
        kind = folder.split("/")[0]
        item.add_marker(kind)
        if folder == NIGHTLY:
            item.add_marker("nightly")
        if kind in CLUSTERS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(CLUSTER_TIMEOUT_S))
        ranks[item] = ORDER.index(folder if folder in ORDER else kind)
    items.sort(key=ranks.__getitem__)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*values: Any, **names: Any) -> None:
        asyncio.run(test(*values, **names))

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Runs a test that is a coroutine in a loop of its own; each example of a property likewise."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        pyfuncitem.obj = in_a_loop(test)
    elif inspect.iscoroutinefunction(getattr(getattr(test, "hypothesis", None), "inner_test", None)):
        test.hypothesis.inner_test = in_a_loop(test.hypothesis.inner_test)


def pytest_collection_finish() -> None:
    """Takes what was imported out of every later collection of garbage, which pytest and many tests ask for: a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def demo_root() -> Path:
    """Random weights, small: what a test of arithmetic needs."""
    return resolve("small-random", cache_home())


@pytest.fixture(scope="session")
def taught_root() -> Path:
    """The demo checkpoint of the package, which speaks."""
    return resolve("demo", cache_home())


@pytest.fixture(scope="session")
def english_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that speaks no Chinese, and only at one pace."""
    folder = tmp_path_factory.mktemp("english") / "checkpoint"
    write_english_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def full_random_root() -> Path:
    """The checkpoint of real dimensions, made on first use: 1.2 GB."""
    return resolve("full-random", cache_home())


@pytest.fixture(scope="session")
def demo(demo_root: Path) -> Checkpoint:
    return open_checkpoint(demo_root)
