"""One browser for all tests of the page: each visit has a storage of its own."""

import pytest

from tests.support.browser import chromium


@pytest.fixture(scope="session")
def browser():
    with chromium() as found:
        yield found
