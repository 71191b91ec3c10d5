"""Health: readiness, with its reason."""

import requests

from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving


def test_a_service_without_replicas_is_ready_and_says_that_it_sleeps():
    services = make_services(Speaker())
    with serving(services) as live:
        assert requests.get(f"{live.url}/ready", timeout=60).json() == {"status": "ready"}
        services.status.asleep = {"AcousticModel": "waking"}
        reply = requests.get(f"{live.url}/ready", timeout=60)
    assert (reply.status_code, reply.json()) == (200, {"status": "ready", "stages": {"AcousticModel": "waking"}})


def test_not_ready_names_the_reason():
    with serving(make_services(Speaker(), not_ready="no answer from AcousticModel")) as live:
        reply = requests.get(f"{live.url}/ready", timeout=60)
    assert reply.status_code == 503
    assert reply.json()["reason"] == "no answer from AcousticModel"
    assert reply.headers["Retry-After"] == "2"
