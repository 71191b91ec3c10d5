"""Marks every test by its folder; the fixtures every room shares."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # the GPU's kernels, run in Python; read when they are defined

from pipeline.checkpoint.locate import cache_home, resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint

# A property is wrong or right, not slow: how fast examples come is a matter of what else the machine does.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

KINDS = {"unit", "parity", "integration", "e2e"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        kind = item.path.relative_to(root).parts[0]
        if kind in KINDS:
            item.add_marker(kind)


@pytest.fixture(scope="session")
def demo_root() -> Path:
    """Random weights, small: what a test of arithmetic needs."""
    return resolve("small-random", cache_home())


@pytest.fixture(scope="session")
def taught_root() -> Path:
    """The demo checkpoint of the package, which speaks."""
    return resolve("demo", cache_home())


@pytest.fixture(scope="session")
def full_random_root() -> Path:
    """The checkpoint of real dimensions, made on first use: 1.2 GB."""
    return resolve("full-random", cache_home())


@pytest.fixture(scope="session")
def demo(demo_root: Path) -> Checkpoint:
    return open_checkpoint(demo_root)
