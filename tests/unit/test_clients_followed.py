"""docs/clients.md followed to the letter: its clients, unmodified and in environments of their own, speak as it says.

The servers are those of one ingress replica with the demo voice; tests/e2e/test_clients.py has a whole service. Programs
that are no packages are replayed in tests/unit/test_clients_page.py.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve.config.app_config import LimitsConfig
from serve.config.doors import WyomingConfig
from serve.doors.wyoming.listener import WyomingListener
from serve.http.services import Services
from tests.support.demo_voice import demo_speaker
from tests.support.fakes import make_services
from tests.support.followed import JAVASCRIPT, PYTHON_PAGES, Places, constructors_speak, first_example_runs, javascript_runs
from tests.support.live_server import serving
from tests.support.ports import free_port
from tests.support.riva_server import riva_serving

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Servers(Places):
    """Servers of one ingress replica."""

    services: Services


@pytest.fixture(scope="module")
def places() -> Iterator[Servers]:
    with ExitStack() as opened:
        services = make_services(opened.enter_context(demo_speaker()), LimitsConfig(first_audio_timeout_s=120))
        http = opened.enter_context(serving(services)).port
        grpc = int(opened.enter_context(riva_serving(services)).partition(":")[2])
        yield Servers({8000: http, 9000: grpc, 10200: free_port()}, services)


def test_the_clients_of_the_page_speak_as_it_says(places: Servers):
    async def follow() -> None:
        listener = WyomingListener(WyomingConfig(port=places.ports[10200]), places.services)
        await listener.start()
        try:
            await asyncio.to_thread(constructors_speak, places)
        finally:
            await listener.stop()

    asyncio.run(follow())


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_first_example_of_a_client_runs_as_it_is_written(places: Servers, tmp_path: Path, page: str):
    first_example_runs(places, page, tmp_path)


@pytest.mark.parametrize("number", range(len(JAVASCRIPT)))
def test_javascript_runs_as_it_is_written(places: Servers, tmp_path: Path, number: int):
    javascript_runs(places, number, tmp_path)


def test_every_package_of_the_page_is_followed():
    assert len(JAVASCRIPT) == 4
