"""Cluster: connects a command to a running Ray cluster.

In:    the cluster's address; the access that `chattts-serve start` has written for services on this machine
Out:   a block that runs connected; exit code 1 and a sentence where the cluster, or Serve on it, does not answer
Owns:  the connection, for as long as the block runs
Never: starting a cluster; waiting longer than its limit
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from pipeline.paths import cache_home
from scripts.launch.runs import running

CONNECT_S = 45.0  # Ray's own limits are some thirty seconds, but it waits for a dead raylet without a limit


@contextmanager
def connected(address: str, limit_s: float) -> Iterator[None]:
    """Runs a block as one of the cluster's drivers.

    Args:
        address: host:port, or auto: $RAY_ADDRESS, or the one service `chattts-serve start` runs on this machine.
        limit_s: longest time the block may take after it has connected [s]. Ray's calls cannot be interrupted, so
            this process ends then, with exit code 1.
    """
    limit_s += CONNECT_S
    watchdog = threading.Timer(limit_s, _give_up, [limit_s])
    watchdog.daemon = True
    watchdog.start()
    try:
        if address == "auto":
            use_local_access()
        ray.init(address=address, namespace="serve", log_to_driver=False)
        yield
    except (ConnectionError, RayError) as error:
        sys.exit(f"the cluster does not answer: {type(error).__name__}")
    except (RayServeException, ValueError) as error:  # no application of that name, or no valid address or node
        sys.exit(str(error))
    finally:
        ray.shutdown()
        watchdog.cancel()


def use_local_access() -> None:
    """Restarts this command with the address and token of the one service on this machine, if the environment has none.

    Raises:
        ValueError: several services run here.
    """
    if os.environ.get("RAY_ADDRESS"):
        return
    found = running(cache_home())
    if len(found) > 1:
        addresses = ", ".join(access["RAY_ADDRESS"] for access in found if "RAY_ADDRESS" in access)
        raise ValueError(
            f"several services run here ({addresses}): read the file named by `Ray:` at the start of the right one"
        )
    for access in found:
        # Ray reads its environment when it is imported, so the process starts again.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | access)


def _give_up(limit_s: float) -> None:
    print(f"the cluster did not answer within {limit_s:g} s", file=sys.stderr, flush=True)
    os._exit(1)
