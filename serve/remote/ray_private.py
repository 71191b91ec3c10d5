"""Ray's private names: every one that this project uses, each with the public one that would replace it.

In:    deployment handles, the processes of Ray
Out:   what Ray says of itself only there
Never: one of them anywhere else outside tests and the workshop. The release of Ray is pinned; a new one is read here first
"""

from typing import Any

import ray
from ray._private import worker
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle

IS_BEHIND_PROXY: bool = RAY_SERVE_ENABLE_HA_PROXY
"""HAProxy stands before the ingress. Replaced by: a field of serve.status()"""


def requires_token() -> bool:
    """True if Ray's processes refuse callers without a token. Replaced by: a field of ray.get_runtime_context()."""
    return bool(is_token_auth_enabled())


def is_stopping() -> bool:
    """True from the moment when Serve begins to stop the replica of this process; False where there is none.

    Serve calls nothing of a deployment before its requests have ended, and a conversation may never end by itself.
    Replaced by: a hook of a deployment that Serve calls when it begins to stop a replica.
    """
    here = worker.global_worker
    replica = here.actors.get(here.actor_id) if here.connected else None
    return bool(getattr(getattr(replica, "_replica_impl", None), "_shutting_down", False))


def may_sleep(handle: DeploymentHandle[Any]) -> bool:
    """True if a deployment may be without replicas (min_replicas: 0); False as long as nothing is known of it.

    Serve tells its routers of settings as they change. Replaced by: the settings of a deployment in RequestRouter.
    """
    router: Any = getattr(getattr(handle, "_router", None), "_asyncio_router", None)
    scaling = None if router is None else router._metrics_manager.autoscaling_config
    return scaling is not None and scaling.min_replicas == 0


async def broadcast(handle: DeploymentHandle[Any], method: str) -> list[Any]:
    """Calls a method of every replica and returns the results to wait for, each with `get_async` and `cancel`.

    Replaced by: a `results_async` of DeploymentBroadcastResponse that does not wait for all of them, or for none.
    """
    results: list[Any] = await handle.broadcast(method)._fetch_replica_results_async()
    return results


def drain_node(node: str, reason: str, deadline: float) -> tuple[bool, str]:
    """Asks Ray to take a node out of the cluster. Replaced by: a public form of `ray drain-node`.

    Args:
        deadline: when it ends, whatever still runs there [s since the epoch].

    Returns:
        whether Ray accepts it, and why not.
    """
    kind = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = GcsClient(address=ray.get_runtime_context().gcs_address).drain_node(
        node, kind, reason, round(1000 * deadline)
    )
    return accepted, why


def serve_details() -> dict[str, Any] | None:
    """Returns applications and proxies, each replica with its node; None: Serve does not run. Replaced by: serve.status()."""
    client = _get_global_client(raise_if_no_controller_running=False)
    return None if client is None else dict(client.get_serve_details())
