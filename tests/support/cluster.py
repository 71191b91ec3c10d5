"""One local Ray cluster for the whole session, and what tests need to look inside it."""

import contextlib
import copy
import json
import os
import re
import signal
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.serve._private.client as serve_client
import requests
from ray import serve

from pipeline.yaml_loader import parse_yaml
from scripts.chaos.deploying import deploy
from serve.config.app_config import PROJECT
from tests.support.ports import free_port
from tests.support.waiting import wait_until

LONG = "Many words follow one another here, and none of them is the last one yet. " * 20
# Drawn almost evenly from all codes, so that the end is seldom among them: every segment runs to its cap.
FLAT = {"temperature": 2.0, "top_p": 1.0, "top_k": 626, "repetition_penalty": 1.0}
# Long enough to be under way whenever somebody looks: what a reader does not take yet is decoded ahead all the same.
LONG_SPEECH = json.dumps(
    {"input": LONG[: len(LONG) // 20] * 50, "response_format": "pcm", "seed": 1, "cache": "no-store", **FLAT}
).encode()
LONG_STEPS = 12_000  # and more, if nobody stops it

# Before Ray starts its processes; a session of its own beside whatever else runs on the machine.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.02",
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",  # ten by default: a busy machine starts a proxy later than that
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # five by default
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(PROJECT),
    "RAY_metrics_report_interval_ms": "500",
}


def document_of(name: str, *, app: str, route: str, **args: Any) -> dict[str, Any]:
    """The application of configs/<name>, small enough to start quickly, under a name and route of its own."""
    document: dict[str, Any] = copy.deepcopy(parse_yaml((PROJECT / "configs" / name).read_text()))
    application = document["applications"][0]
    application |= {"name": app, "route_prefix": route}
    application["args"]["source"] = None  # the file is not what is deployed
    application["args"]["pipeline"]["checkpoint"] = "small-random"  # steps that cost little; words are test_words.py's
    store = Path(os.environ["RAY_TMPDIR"]) / "store.sqlite"  # never the user's own voices
    application["args"]["voices"] = {"store": str(store), "clone": True, "inline": True}
    for section, values in args.items():
        application["args"].setdefault(section, {})
        for key, value in values.items():
            if isinstance(value, dict):
                application["args"][section].setdefault(key, {}).update(value)
            else:
                application["args"][section][key] = value
    for deployment in application["deployments"]:
        deployment["graceful_shutdown_wait_loop_s"] = 0.05
        deployment["graceful_shutdown_timeout_s"] = 5
    return document


@dataclass
class Cluster:
    """A running Serve."""

    port: int
    start_s: float
    temp_dir: Path
    metrics_port: int

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

    def replicas(self, app: str, deployment: str) -> list[int]:
        """Process ids of a deployment's replicas, of this session alone."""
        return self.processes(f"ray::ServeReplica:{app}:{deployment}")

    def processes(self, title: str) -> list[int]:
        """Process ids of the processes whose title begins so, of this session alone."""
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _read(pid, "cmdline").startswith(title.encode()) and str(self.temp_dir).encode() in _read(pid, "environ")
        ]

    def text_workers(self, app: str) -> list[int]:
        """Process ids of the text workers beside an application's text replicas."""
        parents = self.replicas(app, "TextNormalizer")
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if b"pipeline.text.isolation.worker" in _read(pid, "cmdline") and _parent(pid) in parents
        ]

    def kill_replica(self, app: str, deployment: str) -> int:
        """SIGKILL one replica; returns its process id once it is gone."""
        (pid,) = self.replicas(app, deployment)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in self.replicas(app, deployment), 5.0)
        return pid


def start_cluster() -> Cluster:
    """Ray with three GPUs that exist on paper only, Serve on a free port, the application of configs/dev.yaml."""
    os.environ.update(ENVIRONMENT)
    # Short: Ray puts sockets below it, and a socket's path may have 107 characters.
    temp_dir = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    os.environ["RAY_TMPDIR"] = str(temp_dir)
    began = time.monotonic()
    serve_client.CLIENT_POLLING_INTERVAL_S = 0.05  # type: ignore[attr-defined]
    # The folder Ray is started in comes first on its workers' path: it must not be one that holds some release's code.
    with contextlib.chdir(temp_dir):
        ray.init(
            address="local",
            num_cpus=16,
            num_gpus=3,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=200 << 20,
            namespace="serve",
            _temp_dir=str(temp_dir),
            _metrics_export_port=(metrics_port := free_port()),
        )
    port = free_port()
    document = document_of("dev.yaml", app="chattts", route="/")
    document["http_options"]["port"] = port
    deploy(document)
    return Cluster(port, time.monotonic() - began, temp_dir, metrics_port)


def stop_cluster() -> None:
    """Serve and Ray of this process; nobody else's."""
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


def is_idle(health: dict[str, Any]) -> bool:
    """No request inside, no slot taken, and an acoustic replica that says so."""
    engines = health["acoustic"]
    used: int = sum(engine["slots_used"] + engine["waiting"] for engine in engines)
    return bool(engines) and health["admission"]["in_flight"] == used == 0


def _parent(pid: int) -> int:
    """-1: there is no such process."""
    fields = _read(pid, "stat").rpartition(b") ")[2].split()
    return int(fields[1]) if fields else -1


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


# Metrics: what Prometheus would read from the session's cluster.

EXPORT_TIMEOUT_S = 40.0

Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(cluster: Cluster) -> Samples:
    """Returns name -> [(tags, value)] of the service's own metrics."""
    samples: Samples = {}
    for line in requests.get(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=10).text.splitlines():
        match = re.fullmatch(r"(ray_chattts_\w+)\{(.*)\} (\S+)", line)
        if match:
            tags = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
            samples.setdefault(match[1], []).append((tags, float(match[3])))
    return samples


def total(samples: Samples, name: str, **tags: str) -> float:
    """Returns the sum over all samples of a metric that carry these tags."""
    return sum(value for labels, value in samples.get(name, []) if tags.items() <= labels.items())
