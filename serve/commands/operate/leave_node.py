"""Leave: takes one machine out of a running cluster; its streams end there, new replicas start elsewhere. Then stop it.

In:    the address of a Ray cluster; a node of it
Out:   exit code 0 once nothing of Serve runs on the node, 1 if something was left after --grace or no cluster answers
Never: stopping anything; a machine that is leaving takes no new work until it is stopped
"""

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

import ray

from serve.commands.launch.processes import is_free
from serve.commands.operate.cluster import add_address, connected
from serve.remote.ray_private import drain_node, serve_details

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
    add_address(parser)
    args = parser.parse_args(arguments)
    with connected(args.address, args.grace + ANSWER_S):
        remaining = leave(args.node or node_here(alive_nodes()), args.grace)
    if remaining:
        print(f"after {args.grace:g} s there still were {', '.join(remaining)}", file=sys.stderr)
    return 1 if remaining else 0


def alive_nodes() -> dict[str, dict[str, Any]]:
    """Returns id -> Ray's description of every node of the cluster."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]


def node_here(alive: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the node of this machine: the one with an address of it. The node Ray connects a driver to may be another one.

    Raises:
        ValueError: there is none, or there are several.
    """
    here = [node for node, facts in alive.items() if is_free(facts["NodeManagerAddress"], 0)]
    if len(here) == 1:
        return here[0]
    listing = "; ".join(
        f"{node} at {facts['NodeManagerAddress']}{' (the head)' * is_head(facts)}" for node, facts in alive.items()
    )
    raise ValueError(f"{len(here) or 'none'} of the cluster's nodes are on this machine: choose one with --node: {listing}")


def is_head(node: Mapping[str, Any]) -> bool:
    """True for the first machine, which carries the cluster."""
    return HEAD in node["Resources"]


def leave(node: str, grace_s: float) -> list[str]:
    """Drains a node; returns descriptions of what of Serve is still on it at the end.

    Raises:
        ValueError: the node is not part of the cluster, or is its head.
    """
    alive = alive_nodes()
    if node not in alive:
        raise ValueError(f"{node} is no node of this cluster, which has {', '.join(alive)}")
    if is_head(alive[node]):
        raise ValueError("the head node carries the cluster and cannot leave it: drain the service (chattts-serve drain)")
    deadline = time.time() + grace_s
    accepted, why = drain_node(node, "the node leaves the cluster", deadline)
    if not accepted:
        raise ValueError(f"Ray does not let it leave: {why}")
    while (remaining := on(node)) and time.time() < deadline:
        time.sleep(POLL_S)
    return remaining


def on(node: str) -> list[str]:
    """Returns descriptions of the replicas and the proxy on a node."""
    details = serve_details()
    if details is None:
        return []
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
