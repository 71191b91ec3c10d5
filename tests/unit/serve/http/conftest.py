"""A server over a Speaker, for the tests that need no other one."""

import pytest

from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving


@pytest.fixture(scope="module")
def live():
    with serving(make_services(Speaker())) as server:
        yield server
