"""Cluster exposure: whether other machines can run code on this cluster without a token, and the warning.

In:    Ray's address of this node, its mode of authentication
Out:   a warning, or None
Owns:  nothing
Never: changing either: they are chosen before Ray starts
"""

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled

from serve.config.hosts import is_local_host


def exposure(address: str, *, requires_token: bool) -> str | None:
    """Returns the warning to log; None if there is no risk.

    Args:
        address: Ray's, of this node.
        requires_token: whether Ray's processes refuse callers without a token.
    """
    if requires_token or is_local_host(address):
        return None
    return (
        f"any client that reaches {address} can run any code as this user: Ray listens there and requires no token "
        "(RAY_AUTH_MODE=disabled). Start with RAY_AUTH_MODE=token, by `make serve`, or behind a firewall"
    )


def exposure_of_this_cluster() -> str | None:
    """Returns the warning for the cluster of this process; None if there is no risk, or no cluster."""
    if not ray.is_initialized():
        return None
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return exposure(address, requires_token=is_token_auth_enabled())
