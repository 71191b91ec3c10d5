"""One local Ray cluster for the whole session, and what tests need to look inside it."""

import contextlib
import copy
import os
import re
import signal
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
from tests.support.service import Service
from tests.support.waiting import wait_until

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
class Cluster(Service):
    """A running Serve."""

    start_s: float
    temp_dir: Path
    metrics_port: int

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

    def text_workers(self, app: str, deployment: str = "TextNormalizer") -> list[int]:
        """Process ids of the text workers of an application's replicas."""
        parents = self.replicas(app, deployment)
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
