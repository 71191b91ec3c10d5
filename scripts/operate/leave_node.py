"""Leave: takes one machine out of a running cluster; its streams end there, new replicas start elsewhere. Then stop it.

In:    the Ray cluster of this environment; a node of it
Out:   exit code 0 once nothing of Serve runs on the node, 1 if something was left after --grace or no cluster answers
Owns:  nothing
Never: stopping anything; a machine that is leaving takes no new work until it is stopped
"""

import argparse
import sys
import time

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]
from ray.serve.context import _get_global_client

from scripts.operate.cluster import connected

POLL_S = 0.5
ANSWER_S = 10.0  # of the cluster, on top of --grace
HEAD = "node:__internal_head__"  # the resource only the first machine has


def main(arguments: list[str] | None = None) -> int:
    """Announces to Ray that the node leaves and waits until Serve has left it."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve leave", description="Take this machine out of a running cluster without cutting a stream."
    )
    parser.add_argument("--node", help="id of the node, as `ray list nodes` shows it; default: this machine's")
    parser.add_argument(
        "--grace",
        type=float,
        default=740.0,
        help="longest time to wait, for streams and for the start of replicas elsewhere [s] (default: %(default)s)",
    )
    parser.add_argument("--address", default="auto", help="address of the Ray cluster (default: %(default)s)")
    args = parser.parse_args(arguments)
    with connected(args.address, args.grace + ANSWER_S):
        left = leave(args.node or ray.get_runtime_context().get_node_id(), args.grace)
    if left:
        print(f"after {args.grace:g} s there still were {', '.join(left)}", file=sys.stderr)
    return 1 if left else 0


def leave(node: str, grace_s: float) -> list[str]:
    """Drains a node; returns descriptions of what of Serve is still on it at the end.

    Raises:
        ValueError: the node is not part of the cluster, or is its head.
    """
    alive = {found["NodeID"]: found for found in ray.nodes() if found["Alive"]}  # type: ignore[no-untyped-call]
    if node not in alive:
        raise ValueError(f"{node} is no node of this cluster, which has {', '.join(alive)}")
    if HEAD in alive[node]["Resources"]:
        raise ValueError("the head node carries the cluster and cannot leave it: drain the service (chattts-serve drain)")
    deadline = time.time() + grace_s
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    gcs = GcsClient(address=ray.get_runtime_context().gcs_address)
    accepted, why = gcs.drain_node(node, reason, "the node leaves the cluster", round(1000 * deadline))
    if not accepted:
        raise ValueError(f"Ray does not let it leave: {why}")
    while (left := on(node)) and time.time() < deadline:
        time.sleep(POLL_S)
    return left


def on(node: str) -> list[str]:
    """Returns descriptions of the replicas and the proxy on a node."""
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return []
    details = client.get_serve_details()
    replicas = [
        f"a replica of {name}"
        for application in details["applications"].values()
        for name, deployment in application["deployments"].items()
        for replica in deployment["replicas"]
        if replica.get("node_id") == node  # one that is still being placed has none
    ]
    proxy = details["proxies"].get(node)
    return replicas + (["the proxy"] if proxy is not None and proxy["status"] != "DRAINED" else [])


if __name__ == "__main__":
    sys.exit(main())
