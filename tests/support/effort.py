"""Effort: how many examples a property is tried with and how long is fuzzed, by the ring of tests that runs."""

import os
import random
import time
from collections.abc import Iterator

SHARES = {"quick": 0.2, "usual": 1.0, "nightly": 10.0}
FEWEST = 3


def examples(usual: int) -> int:
    """Returns the number of examples in the ring that CHATTTS_TEST_EFFORT names (quick, usual, nightly), `usual` without it."""
    return max(min(FEWEST, usual), round(_share() * usual))


def seconds(usual: float) -> float:
    """Returns the seconds to spend on something that takes as long as it is given."""
    return _share() * usual


def _share() -> float:
    return SHARES[os.environ.get("CHATTTS_TEST_EFFORT", "usual")]


def new_seeds(usual_s: float) -> Iterator[int]:
    """Yields random seeds until the time is over: `seconds(usual_s)`."""
    until = time.monotonic() + seconds(usual_s)
    while time.monotonic() < until:
        yield random.randrange(10**9)
