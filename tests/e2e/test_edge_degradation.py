"""configs/edge.yaml on one core: with a share of it and back, quality goes and comes in steps, and every reply is whole."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from serve.config.app_config import PROJECT
from serve.config.config_file import parse_yaml
from serve.speech.load_shedding import RECOVER_AFTER_S, SLOW_RTF
from tests.support.started import Started, started

TEXT = "Here are some words, and none of them is the last. Then a second sentence follows, with a clause, and it ends here."
WORDS = [word.strip(",.") for word in TEXT.split()]
STEPS = parse_yaml((PROJECT / "configs/edge.yaml").read_text())["applications"][0]["args"]["degrade"]["steps"]
EASING = STEPS[: STEPS.index("bulk")]
MEMORY = 1 << 30  # bytes
PERIOD_S = 0.1
SHARES = (0.3, 0.15, 0.08, 0.04, 0.02)  # of the core; the first that is too small for whatever machine this is
MOST_SPEECHES = 200
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def edge(home: Path, folder: Path) -> Iterator[Started]:
    with on_a_small_machine(), started(home=home, folder=folder, shipped="edge") as service:
        service.wait_until_ready()
        yield service


@contextmanager
def on_a_small_machine() -> Iterator[None]:
    """One core and a gigabyte for what starts here."""
    cores, limits = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_DATA)
    os.sched_setaffinity(0, {min(cores)})
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
        os.sched_setaffinity(0, cores)


@contextmanager
def slowed(service: Started, share: float) -> Iterator[None]:
    """A share of its core: it is stopped for the rest of each period."""
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.wait(share * PERIOD_S):
            os.killpg(service.process.pid, signal.SIGSTOP)
            over.wait((1 - share) * PERIOD_S)
            os.killpg(service.process.pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.killpg(service.process.pid, signal.SIGCONT)


def speak(service: Started, **fields: Any) -> requests.Response:
    """A whole reply with every word in it."""
    body = {"input": TEXT, "response_format": "pcm", "stream": False, "timestamps": "word", "cache": "no-store", **fields}
    reply = requests.post(f"{service.url}/v1/audio/speech", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    spoken = reply.json()
    assert " ".join(segment["text"].strip() for segment in spoken["segments"]) == TEXT
    assert [word["text"] for word in spoken["words"]] == WORDS
    return reply


def degradation(service: Started) -> dict[str, Any]:
    report: dict[str, Any] = requests.get(f"{service.url}/health", timeout=300).json()["degrade"]
    return report


def speak_until(
    service: Started, is_reached: Callable[[dict[str, Any]], bool], most: int, pause_s: float = 0.0
) -> dict[str, Any]:
    """The degradation at which that was so, or after the most speeches."""
    for _ in range(most):
        steps = speak(service).headers.get("X-Degraded", "")
        assert set(filter(None, steps.split(", "))) <= set(EASING)
        if is_reached(state := degradation(service)):
            break
        time.sleep(pause_s)
    return state


def keeps_up(state: dict[str, Any]) -> bool:
    return state["rtf"] <= SLOW_RTF or state["level"] == len(EASING)


def test_with_a_share_of_a_core_quality_goes_in_steps_and_comes_back(edge: Started):
    whole = speak(edge, seed=5).json()
    for share in SHARES:
        with slowed(edge, share):
            if not speak_until(edge, lambda state: state["level"] > 0, 8)["level"]:
                continue
            state = speak_until(edge, keeps_up, MOST_SPEECHES)
            assert state["active_steps"] == STEPS[: state["level"]] != []
            assert keeps_up(state)
            unchanged = speak(edge, seed=5)
            assert "X-Degraded" not in unchanged.headers
            assert unchanged.json()["audio"] == whole["audio"], "a seed of its own: the same bytes"
            break
    else:
        raise AssertionError("no share of a core was too small")
    assert speak_until(edge, lambda state: state["level"] == 0, MOST_SPEECHES, RECOVER_AFTER_S / 6)["level"] == 0


def test_both_versions_fit_into_a_gigabyte(edge: Started):
    speak(edge, model="demo@light")
    speak(edge, model="demo@full")
    here = psutil.Process(edge.process.pid)
    assert sum(process.memory_full_info().pss for process in (here, *here.children(recursive=True))) < MEMORY
