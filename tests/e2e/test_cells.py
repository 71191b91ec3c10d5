"""Two cells behind docs/cells.haproxy.cfg: one is killed, and what it was saying goes on, to the byte, in the other."""

import contextlib
import math
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from serve.config.app_config import PROJECT
from serve.http.haproxy import bundled_binary
from tests.support.ports import free_port
from tests.support.service import FLAT
from tests.support.started import Started, short_folder, started
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

SENTENCE = "Many words follow one another here, and none of them is the last one yet. "
LONG = {"input": SENTENCE * 6, "response_format": "pcm", "seed": 1, "cache": "no-store", **FLAT}
FLEET = {"CHATTTS_FLEET_KEY": "one key of all cells, drawn by chance"}
KEYS = [f"Bearer key-{number}" for number in range(12)]
PIECE = 1 << 14
LOAD = 0.7


@dataclass
class Fleet:
    url: str
    cells: list[Started]

    def home_of(self, key: str) -> Started:
        """The cell that gets the requests of a key."""
        before = [admitted(cell) for cell in self.cells]
        with speak(self.url, key, input="Yes.") as reply:
            assert reply.status_code == 200, reply.text
            assert reply.content
        (home,) = [cell for cell, count in zip(self.cells, before, strict=True) if admitted(cell) > count]
        return home


def admitted(cell: Started) -> int:
    """Replies that have begun in a cell."""
    text = requests.get(f"{cell.url}/metrics", timeout=10).text
    lines = (line for line in text.splitlines() if line.startswith("ray_chattts_requests_total{"))
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def speak(url: str, key: str, headers: dict[str, str] | None = None, **fields: Any) -> requests.Response:
    headers = {"Authorization": key, **(headers or {})}
    return requests.post(f"{url}/v1/audio/speech", json=LONG | fields, headers=headers, stream=True, timeout=120)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        cells = []
        for number in range(2):
            home, folder = tmp_path / f"home {number}", stack.enter_context(short_folder())
            home.mkdir()
            open_to_all = {"keys: {": "keys: {open: true, "}
            cells.append(stack.enter_context(started(home=home, folder=folder, shipped="box", changes=open_to_all, **FLEET)))
        for cell in cells:
            cell.wait_until_ready()
        port, file = free_port(), tmp_path / "cells.haproxy.cfg"
        ports = {"127.0.0.1:8080": port, "127.0.0.1:8001": cells[0].port, "127.0.0.1:8002": cells[1].port}
        text = (PROJECT / "docs/cells.haproxy.cfg").read_text()
        for place, ours in ports.items():
            assert text.count(place) == 1
            text = text.replace(place, f"127.0.0.1:{ours}")
        file.write_text(text)
        proxy = subprocess.Popen([bundled_binary(), "-f", str(file)])
        stack.callback(proxy.wait)
        stack.callback(proxy.kill)
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url))
        yield Fleet(url, cells)


def answers(url: str) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"{url}/cell", timeout=5).status_code == 200
    return False


def test_a_cell_dies_and_its_replies_go_on_in_the_other(fleet: Fleet):
    homes = {key: fleet.home_of(key) for key in KEYS}
    assert set(Counter(home.port for home in homes.values())) == {cell.port for cell in fleet.cells}, "every cell is a home"
    key, dying = next((key, home) for key, home in homes.items())
    state = requests.get(f"{fleet.url}/cell", timeout=10).json()
    assert state["slots"] == 8
    assert set(state["wait_s"]) == {"interactive", "standard", "bulk"}
    whole = speak(fleet.url, key).content

    reply = speak(fleet.url, key)
    assert reply.headers["X-Resume"]
    pieces = reply.iter_content(PIECE)
    received = next(pieces)
    dying.process.kill()
    died_at = time.monotonic()
    with contextlib.suppress(requests.RequestException):
        for piece in pieces:
            received += piece
    assert len(received) < len(whole), "it was killed in the middle"
    wait_until(lambda: time.monotonic() > died_at + 2.0)
    for other in KEYS:
        with speak(fleet.url, other, input="Yes.") as after:
            assert after.status_code == 200, f"{other}: {after.text}"
    rest = speak(fleet.url, key, headers={"X-Resume": reply.headers["X-Resume"], "Range": f"bytes={len(received)}-"})
    assert rest.status_code == 206, rest.text
    assert received + rest.content == whole


class Visitors:
    """Clients at random times, each of a key of its own; a reply that is cut goes on by its X-Resume."""

    def __init__(self, url: str) -> None:
        self._url, self._threads, self._lock = url, list[threading.Thread](), threading.Lock()
        self.outcomes = list[tuple[float, str, float]]()
        """when each came [monotonic s], what became of it, and its first audio [s]"""

    def arrive(self, rate: float, seconds: float, draws: random.Random) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(draws.expovariate(rate))
            self.ask(f"Bearer guest-{draws.random()}", draws.randrange(9))

    def ask(self, key: str, seed: int) -> None:
        self._threads.append(threading.Thread(target=self._speak, args=(key, seed)))
        self._threads[-1].start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()

    def _speak(self, key: str, seed: int) -> None:
        began, first_s, received, outcome = time.monotonic(), math.inf, b"", "whole"
        try:
            with speak(self._url, key, seed=seed) as reply:
                outcome = outcome if reply.ok else str(reply.status_code)
                try:
                    for piece in reply.iter_content(PIECE):
                        first_s = min(first_s, time.monotonic() - began)
                        received += piece
                except requests.RequestException:
                    headers = {"X-Resume": reply.headers["X-Resume"], "Range": f"bytes={len(received)}-"}
                    rest, whole = speak(self._url, key, headers, seed=seed), speak(self._url, key, seed=seed)
                    is_equal = rest.status_code == 206 and received + rest.content == whole.content
                    outcome = "resumed" if is_equal else "lost"
        except requests.RequestException as error:
            outcome = type(error).__name__
        with self._lock:
            self.outcomes.append((began, outcome, first_s))


def test_under_load_a_cell_dies_and_nobody_is_refused_after_two_seconds(fleet: Fleet):
    """Two cells on two cores are asked for LOAD of what both speak together."""
    dying = fleet.home_of(KEYS[0])
    began, crowd = time.monotonic(), Visitors(fleet.url)
    crowd.arrive(1e3, 0.01, random.Random(1))
    crowd.wait()
    rate = LOAD * len(crowd.outcomes) / (time.monotonic() - began)
    visitors = Visitors(fleet.url)
    visitors.arrive(rate, 15.0, random.Random(2))
    for seed in range(2):
        visitors.ask(KEYS[0], seed)
    time.sleep(1.5)
    dying.process.kill()
    died_at = time.monotonic()
    visitors.arrive(rate, 20.0, random.Random(3))
    visitors.wait()
    outcomes = Counter(outcome for _, outcome, _ in visitors.outcomes)
    later = sorted(first_s for at, _, first_s in visitors.outcomes if at >= died_at + 2)
    print(f"{rate:.2f} requests a second: {outcomes}; of {len(later)} afterwards first audio {later[len(later) // 2]:.2f} s")
    assert {outcome for at, outcome, _ in visitors.outcomes if at >= died_at + 2} == {"whole"}
    assert outcomes["resumed"] > 0
    assert set(outcomes) <= {"whole", "resumed"}


def test_a_storm_of_one_key_reaches_its_own_cell_only(fleet: Fleet):
    home = fleet.home_of(KEYS[0])
    (other,) = [cell for cell in fleet.cells if cell is not home]
    before, statuses, lock = admitted(other), Counter[int](), threading.Lock()

    def storm() -> None:
        for seed in range(6):
            with speak(fleet.url, KEYS[0], seed=seed) as reply, lock:
                statuses[reply.status_code] += 1

    threads = [threading.Thread(target=storm) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 429}, statuses
    assert admitted(other) == before
