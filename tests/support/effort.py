"""Effort: how many examples a property is tried with, by the ring of tests that runs."""

import os

SHARES = {"quick": 0.2, "usual": 1.0, "nightly": 10.0}
FEWEST = 3


def examples(usual: int) -> int:
    """Returns the number of examples in the ring that CHATTTS_TEST_EFFORT names (quick, usual, nightly), `usual` without it."""
    share = SHARES[os.environ.get("CHATTTS_TEST_EFFORT", "usual")]
    return max(min(FEWEST, usual), round(share * usual))
