"""Clients of other projects, unmodified, do what the pages say against a whole service as `make serve` starts it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.followed import JAVASCRIPT, PYTHON_PAGES, Places, constructors_speak, first_example_runs, javascript_runs
from tests.support.ports import free_port
from tests.support.started import PATIENT, started, with_doors

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def places(home: Path, folder: Path) -> Iterator[Places]:
    grpc, wyoming = free_port(), free_port()
    with started(home=home, folder=folder, changes=with_doors(grpc, wyoming), **PATIENT) as found:
        found.wait_until_ready()
        yield Places({8000: found.port, 9000: grpc, 10200: wyoming})


def test_the_clients_of_the_page_speak_as_it_says(places: Places):
    constructors_speak(places)


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_first_example_of_a_client_runs_as_it_is_written(places: Places, tmp_path: Path, page: str):
    first_example_runs(places, page, tmp_path)


@pytest.mark.parametrize("number", range(len(JAVASCRIPT)))
def test_javascript_runs_as_it_is_written(places: Places, tmp_path: Path, number: int):
    javascript_runs(places, number, tmp_path)
