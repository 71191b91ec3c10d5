"""Cluster: connects a command to the Ray cluster that it is to act on, which it names first.

In:    the cluster's address, or what `chattts-serve start` has recorded of the services on this machine
Out:   a block that runs connected; exit code 1 and a sentence where the cluster, or Serve on it, does not answer
Owns:  the connection, for as long as the block runs
Never: starting a cluster; choosing one of several; waiting longer than its limit
"""

import argparse
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from pipeline.paths import cache_home
from serve.commands.launch.announce import gcs_address
from serve.commands.launch.processes import processes
from serve.commands.launch.runs import running

CONNECT_S = 45.0  # Ray's own limits are some thirty seconds, but it waits for a dead raylet without a limit
ADDRESS = re.compile(r"[^\s/]+:[0-9]{1,5}")
PLACES = ("RAY_ADDRESS", "RAY_DASHBOARD_ADDRESS")  # of a run's access; its other variables Ray reads when it is imported


def add_address(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names the cluster."""
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="Ray's address of the cluster (default: $RAY_ADDRESS, or the one service that runs on this machine)",
    )


@contextmanager
def connected(named: str | None, limit_s: float) -> Iterator[None]:
    """Prints which cluster it is, and runs a block as one of its drivers.

    Args:
        named: host:port; None: $RAY_ADDRESS, or the one cluster of this user on this machine.
        limit_s: longest time the block may take after it has connected [s]. Ray's calls cannot be interrupted, so
            this process ends then, with exit code 1.
    """
    limit_s += CONNECT_S
    watchdog = threading.Timer(limit_s, _give_up, [limit_s])
    watchdog.daemon = True
    watchdog.start()
    try:
        services = {access["RAY_ADDRESS"]: access for access in running(cache_home()) if "RAY_ADDRESS" in access}
        address = address_of(named or os.environ.get("RAY_ADDRESS") or None, services, own_clusters)
        use_access(services.get(address, {}))
        print(f"the Ray cluster at {address}", file=sys.stderr, flush=True)
        ray.init(address=address, namespace="serve", log_to_driver=False)
        yield
    except (ConnectionError, RayError) as error:
        sys.exit(f"the cluster does not answer: {type(error).__name__}")
    except (RayServeException, ValueError) as error:  # no application of that name, or no valid address or node
        sys.exit(str(error))
    finally:
        ray.shutdown()
        watchdog.cancel()


def address_of(named: str | None, services: Iterable[str], clusters: Callable[[], set[str]]) -> str:
    """Returns the address of the cluster to act on.

    Args:
        named: an address that was chosen; None: none was.
        services: addresses of the services that `chattts-serve start` runs here.
        clusters: returns the addresses of all clusters of this user that have a node here; asked where there is no service.

    Raises:
        ValueError: it is no address, or there is not exactly one to choose.
    """
    if named is not None:
        if not ADDRESS.fullmatch(named):
            raise ValueError(
                f"{named} is no address of a Ray cluster: give HOST:PORT, or leave it out for the one that runs here"
            )
        return named
    addresses = sorted(services) or sorted(clusters())
    if len(addresses) > 1:
        raise ValueError(f"several Ray clusters run here ({', '.join(addresses)}): choose one with --address")
    if not addresses:
        raise ValueError(
            f"no service runs here that {cache_home()} knows, and no Ray cluster of this user: name one with --address"
        )
    return addresses[0]


def own_clusters() -> set[str]:
    """Returns the addresses of the clusters of which this user runs a node on this machine."""
    nodes = [entry for entry in processes() if entry.name == "raylet" and entry.is_own]
    return {address for node in nodes if (address := gcs_address([node])) is not None}


def use_access(access: Mapping[str, str]) -> None:
    """Restarts this command with a service's token, if it does not have it: Ray reads its environment when it is imported."""
    required = {name: value for name, value in access.items() if name not in PLACES}
    if required.items() <= os.environ.items():
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | required)


def _give_up(limit_s: float) -> None:
    print(f"the cluster did not answer within {limit_s:g} s", file=sys.stderr, flush=True)
    os._exit(1)
