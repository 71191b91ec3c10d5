"""Connection: a script's way into a running Ray cluster.

In:    the cluster's address
Out:   a block that runs connected; exit code 1 and a sentence where the cluster, or Serve on it, does not answer
Owns:  the connection, for as long as the block runs
Never: starting a cluster
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Run a block as one of the cluster's drivers."""
    try:
        ray.init(address=address, namespace="serve", log_to_driver=False)
        yield
    except (ConnectionError, RayError) as error:
        sys.exit(f"the cluster does not answer: {type(error).__name__}")
    except (RayServeException, ValueError) as error:  # nothing of that name runs there, or it is no address, no node
        sys.exit(str(error))
    finally:
        ray.shutdown()
