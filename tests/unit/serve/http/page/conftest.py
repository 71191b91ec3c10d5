"""One browser for the tests of a file: each test's server has a port of its own, so nothing is shared but the window."""

import pytest

from tests.support.browser import chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as port:
        yield port
