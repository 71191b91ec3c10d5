"""Ray environment: the table of the variables that every Ray process of the service needs, and why. `chattts-serve env`

Out:   the variables for a place: one machine under `chattts-serve start`, machines of `ray start`, pods of k8s/
Owns:  the table: start.py and k8s/base/ray-env.yaml are made from it
Never: Ray; a variable's value in a second place
"""

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag, auto

from serve.commands.launch import open_files
from serve.http import haproxy


class Place(Flag):
    """Where Ray's processes run."""

    START = auto()
    """under `chattts-serve start`, on one machine"""
    MACHINES = auto()
    """under `ray start`"""
    PODS = auto()
    """in k8s/"""
    ANY = START | MACHINES | PODS


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the environment."""

    name: str
    value: str
    why: str = ""
    place: Place = Place.ANY
    is_fast: bool = True
    """belongs to the fast data path: HAProxy in front, replicas answer HTTP themselves, handles pass values. Serve's own
    data path is without it"""


IN_THE_IMAGE = "/home/ray/chattts-serve"
POD_HOME, POD_WEIGHTS = "/data", "/weights"
TABLE = (
    Variable("RAY_SERVE_ENABLE_HA_PROXY", "1"),
    Variable("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1"),
    Variable(
        "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE", "1", "throughput mode holds 1000 lines back: those before a crash are lost"
    ),
    Variable("RAY_SERVE_LOG_TO_STDERR", "1", "throughput mode turns it off"),
    Variable("RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS", "1"),
    Variable(
        "RAY_SERVE_HAPROXY_BINARY_PATH",
        f"{IN_THE_IMAGE}/serve/http/haproxy.sh",
        "HAProxy, after its configuration is completed",
        Place.PODS,
    ),
    Variable(
        open_files.MAXCONN,
        str(open_files.CONNECTIONS),
        f"4096 by default; HAProxy opens two files for each, so a pod needs {open_files.files_for(open_files.CONNECTIONS):,}",
        Place.PODS,
    ),
    Variable(
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER", "2s", "5 by default, and twice that until a hung ingress gets nothing more"
    ),
    Variable("RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S", "0.5", "10 by default: a dead proxy would be an outage of half a minute"),
    Variable("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "2"),
    Variable("RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", "1", "30 by default: Ctrl-C would take as long", Place.START),
    Variable("RAY_SERVE_GRPC_MAX_MESSAGE_SIZE", "33554432", "2 GiB by default, of one message of a client"),
    Variable("RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", "67108864", "a reference recording does not fit into 4 MiB"),
    Variable("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "serve.protocols.proxy_middleware:middlewares"),
    Variable("RAY_USAGE_STATS_ENABLED", "0"),
    Variable("RAY_worker_niceness", "0", "15 by default: the service would get no CPU time beside other work"),
    Variable("RAY_AUTH_MODE", "token", "whoever reaches Ray's ports can run code", Place.MACHINES),
    Variable(
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S",
        "20",
        "5 by default: a proxy that starts on a busy machine is killed after three times that",
        is_fast=False,
    ),
    Variable(
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S",
        "0.25",
        "0.1 by default, which is a fifth of what an idle service costs",
        is_fast=False,
    ),
    Variable(
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS",
        "1000",
        "100 by default, in each replica and handle; Ray exports every 10 s",
        is_fast=False,
    ),
    Variable(
        "RAY_ROTATION_MAX_BYTES",
        str(64 << 20),
        "512 MiB by default, and five old files, for each log of each process: more than their disk has",
        is_fast=False,
    ),
    Variable("RAY_ROTATION_BACKUP_COUNT", "2", is_fast=False),
    Variable("RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE", "1", "off by default, which hides a full disk", Place.PODS, is_fast=False),
    Variable(
        "METRICS_RECORD_INTERVAL_S",
        "60",
        "5 by default: how often Ray's dashboard measures itself, half of what it does",
        is_fast=False,
    ),
    Variable(
        "OPENBLAS_NUM_THREADS",
        "1",
        "numpy's products are small, and its threads would take the cores from the native code's",
        is_fast=False,
    ),
    Variable("CHATTTS_HOME", POD_HOME, "jobs, traces, what is compiled: can be written", Place.PODS),
    Variable("CHATTTS_WEIGHTS", POD_WEIGHTS, "fetched weights: read-only where an overlay mounts them", Place.PODS),
    Variable(
        "TRITON_CACHE_DIR",
        "/tmp/ray/triton",
        "compiled GPU kernels outlive a container that is restarted in its pod: 10 to 20 s a start",
        Place.PODS,
    ),
)


def variables(place: Place) -> Iterator[Variable]:
    """Yields the rows of the table for a place."""
    return (variable for variable in TABLE if place & variable.place)


def environment(place: Place, *, is_fast: bool = True) -> dict[str, str]:
    """Returns the variables for a place; with is_fast False those of Serve's own data path alone."""
    return {row.name: row.value for row in variables(place) if is_fast or not row.is_fast}


def main(arguments: list[str] | None = None) -> int:
    """Prints the environment for `ray start` on this machine."""
    argparse.ArgumentParser(
        prog="chattts-serve env",
        description='Print what Ray\'s processes need, for a shell: eval "$(chattts-serve env)" before `ray start`.',
    ).parse_args(arguments)
    for name, value in (environment(Place.MACHINES) | haproxy.program() | open_files.environment()).items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
