"""Replica info: the id and the GPUs of this replica.

Out:   the replica's id and its GPUs
Never: placement: Ray does it as configs/*.yaml says
"""

from typing import Any

import ray
from ray import serve


def replica_info() -> dict[str, Any]:
    """Returns this replica's id and the GPUs that Ray assigned to it; a share of a GPU counts as that GPU."""
    return {"replica": serve.get_replica_context().replica_id.unique_id, "gpus": ray.get_gpu_ids()}
