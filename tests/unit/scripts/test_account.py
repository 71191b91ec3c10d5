"""The account of a load: what the cores did, and where the engine's time went."""

import os
import time

import pytest

from scripts.bench.core_watch import CoreWatch, Samples
from scripts.bench.scenarios.account import core_account, engine_account


def test_a_busy_process_is_seen_to_run():
    with CoreWatch({"this": [os.getpid()], "gone": [2**22 + 1]}) as watch:
        until = time.process_time() + 0.6
        while time.process_time() < until:
            pass
    assert watch.samples.core_s("this") > 0.2
    assert watch.samples.core_s("gone") == watch.samples.waited_s("gone") == 0


def test_periods_count_with_their_length():
    samples = Samples([1.0, 4.0], {"one": [0.5, 1.0]}, {"one": [2.0, 0.0]})
    assert samples.core_s("one") == 3.5
    assert core_account(samples, "one") == {"running": 3.5 / 4, "waiting": 0.5}


def test_every_second_of_the_engine_is_in_one_place():
    spent = {"rounds": 100, "steps": 600, "sequences": 10, "prefill_s": 1.0, "decode_s": 3.0}
    account = engine_account(spent, 5.0, [(2.0, 0.005), (4.0, 0.008), (8.0, 0.016)])
    assert account["rows_per_round"] == 6
    assert account["rounds_alone_s"] == pytest.approx(1.2)
    places = ("rounds_alone_s", "rounds_longer_s", "prefill_s", "neither_s")
    assert sum(account[place] for place in places) == pytest.approx(5.0)
    assert account["prefill_ms_each"] == pytest.approx(100)
