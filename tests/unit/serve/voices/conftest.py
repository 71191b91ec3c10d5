"""A server of the voices routes, and a recording spoken by flite."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.live_server import Live
from tests.support.recordings import SAID, spoken
from tests.support.voice_routes import voice_server


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with voice_server(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, int]:
    return spoken(SAID, tmp_path_factory.mktemp("flite"))
