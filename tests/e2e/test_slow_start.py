"""A machine with other work: what starts slowly is waited for."""

from pathlib import Path

import pytest
import requests

from tests.support.started import started

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(900)
def test_a_proxy_that_is_slow_to_be_ready_is_not_killed(home: Path, folder: Path):
    slow = {"IMPORT_PATH: serve.protocols.proxy_middleware": "IMPORT_PATH: tests.support.slow_proxy"}
    with started("--plain", home=home, folder=folder, changes=slow) as service:
        service.wait_until_ready()
        assert "is unhealthy. Shutting down" not in service.said()
        reply = requests.post(f"{service.url}/v1/audio/speech", json={"input": "Five.", "seed": 1}, timeout=60)
        assert reply.status_code == 200
