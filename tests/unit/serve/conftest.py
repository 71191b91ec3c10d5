"""Fixtures of several folders below."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.store.open import open_store
from pipeline.store.store import Store
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.services import RedisServer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(str(tmp_path / "store.sqlite"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def live():
    """A server over a Speaker, for the tests that need no other one."""
    with serving(make_services(Speaker())) as server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may kill."""
    server = RedisServer(tmp_path)
    yield server
    server.kill()
