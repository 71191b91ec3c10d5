"""What the tests of whole services share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.started import short_folder


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh CHATTTS_HOME: nothing is made yet. Its path has a space."""
    return tmp_path_factory.mktemp("a home")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path
