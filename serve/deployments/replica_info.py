"""Replica info: the id and the GPUs of this replica.

In:    nothing
Out:   the replica's id and its GPUs
Owns:  nothing
Never: choosing: Ray places, configs/*.yaml says how
"""

from typing import Any

import ray
from ray import serve


def replica_info() -> dict[str, Any]:
    """This replica's id and the GPUs Ray gave it; a share of one counts as that one."""
    return {"replica": serve.get_replica_context().replica_id.unique_id, "gpus": ray.get_gpu_ids()}
