"""A running service as its clients see it, whatever it runs on, and speeches that are under way for long."""

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.support.started import short_folder, started

LONG = "Many words follow one another here, and none of them is the last one yet. " * 20
# Drawn almost evenly from all codes, so that the end is seldom among them: every segment runs to its cap.
FLAT = {"temperature": 2.0, "top_p": 1.0, "top_k": 626, "repetition_penalty": 1.0}
# Long enough to be under way whenever somebody looks: what a reader does not take yet is decoded ahead all the same.
LONG_SPEECH = json.dumps(
    {"input": LONG[: len(LONG) // 20] * 50, "response_format": "pcm", "seed": 1, "cache": "no-store", **FLAT}
).encode()
LONG_STEPS = 12_000  # and more, if nobody stops it


@dataclass
class Service:
    """A running service."""

    port: int

    def url(self, route: str = "") -> str:
        return f"http://127.0.0.1:{self.port}{route}"

    def speak(self, *, headers: dict[str, str] | None = None, **fields: Any) -> requests.Response:
        # A seed of its own: random weights end some seeds after a few steps. No cache: what is tested is how it is made.
        body = {"input": "Hello there.", "response_format": "pcm", "seed": 5, "cache": "no-store", **fields}
        return requests.post(self.url("/v1/audio/speech"), json=body, headers=headers, timeout=60)

    def health(self, route: str = "") -> dict[str, Any]:
        report: dict[str, Any] = requests.get(self.url(f"{route}/health"), timeout=10).json()
        return report

    def slots_used(self) -> int:
        """Slots taken, all acoustic replicas together."""
        replicas = self.health()["acoustic"]
        assert replicas, "no acoustic replica answers"
        used: int = sum(stats["slots_used"] for stats in replicas)
        return used

    def steps(self) -> int:
        """Steps made so far, all acoustic replicas together."""
        total: int = sum(stats["steps"] for stats in self.health()["acoustic"])
        return total

    def in_flight(self) -> int:
        """Requests inside the ingress. Slots may look free meanwhile: the demo's steps run far ahead of a reader."""
        inside: int = self.health()["admission"]["in_flight"]
        return inside

    def connect(self, body: bytes, head: str = "") -> socket.socket:
        """A raw connection with a speech request sent."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        client.sendall(
            f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"{head}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return client


def is_idle(health: dict[str, Any]) -> bool:
    """No request inside, no slot taken, and an acoustic replica that says so."""
    engines = health["acoustic"]
    used: int = sum(engine["slots_used"] + engine["waiting"] for engine in engines)
    return bool(engines) and health["admission"]["in_flight"] == used == 0


@contextlib.contextmanager
def one_process(home: Path) -> Iterator[Service]:
    """configs/box.yaml with weights whose steps cost little."""
    changes = {
        "checkpoint: demo": "checkpoint: small-random",
        "limits: {": "voices: {clone: true, inline: true}\n      limits: {",
    }
    with short_folder() as folder, started(home=home, folder=folder, changes=changes, shipped="box") as running:
        running.wait_until_ready()
        yield Service(running.port)
