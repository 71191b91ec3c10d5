"""No client keeps the server from answering others: beside every hostile body a probe in another process is answered."""

from collections.abc import Iterator

import pytest

from tests.support.hostile_bodies import ATTACKS
from tests.support.stalls import CLOCK_MS, CPU_MS, MIDDLE, SMALL, Attack, StallServer, stall_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StallServer]:
    with stall_server(tmp_path_factory.mktemp("jobs")) as running:
        yield running


@pytest.mark.parametrize("size", [SMALL, pytest.param(MIDDLE, marks=pytest.mark.nightly)])
def test_a_hostile_body_stalls_nobody(server: StallServer, size: int) -> None:
    stalls = {attack.name: server.least_stall_of(lambda attack=attack: attack.strike(server, size)) for attack in ATTACKS}
    assert not {name: stall for name, stall in stalls.items() if stall.cpu_ms > CPU_MS}


@pytest.mark.nightly
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_the_largest_hostile_body_stalls_nobody(server: StallServer, attack: Attack) -> None:
    stall = server.least_stall_of(lambda: attack.strike(server, attack.largest), by_clock=True)
    assert stall.cpu_ms <= CPU_MS
    assert stall.clock_ms <= CLOCK_MS
