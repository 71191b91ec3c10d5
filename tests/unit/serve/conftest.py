"""Fixtures of several folders below."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.store.open import open_store
from pipeline.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(str(tmp_path / "store.sqlite"))
    yield opened
    opened.close()
