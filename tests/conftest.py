"""Marks every test by its folder; the fixtures every room shares."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

KINDS = {"unit", "parity", "integration", "e2e"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        kind = item.path.relative_to(root).parts[0]
        if kind in KINDS:
            item.add_marker(kind)
