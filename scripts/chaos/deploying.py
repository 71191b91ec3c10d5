"""Deploying: applications on the Ray of this process, as `serve run` deploys them.

In:    documents such as those of configs/, Ray initialised
Out:   the applications run, or an exception with Serve's own words
Never: the start or the end of Ray; an event loop: it blocks
"""

import time
from collections.abc import Callable
from typing import Any

from ray import serve
from ray.serve._private.api import serve_start
from ray.serve.schema import ServeDeploySchema

START_S = 600.0  # seconds where the machine is idle
POLL_S = 0.1


def deploy(*documents: dict[str, Any], waits: bool = True) -> None:
    """Deploys the applications of all documents, with the options of the first; returns once they run, or at once.

    Raises:
        RuntimeError: one of them cannot be deployed.
        TimeoutError: they do not run yet.
    """
    merged = {**documents[0], "applications": [document["applications"][0] for document in documents]}
    config = ServeDeploySchema.model_validate(merged)
    client = serve_start(
        http_options=config.http_options.model_dump(),
        proxy_location=config.proxy_location,
        controller_options=config.controller_options,
    )
    client.deploy_apps(config, _blocking=False)
    names = [application.name for application in config.applications] if waits else []

    def all_run() -> bool:
        states = serve.status().applications
        for name in names:
            if name in states and states[name].status == "DEPLOY_FAILED":
                raise RuntimeError(states[name].message)
        return all(name in states and states[name].status == "RUNNING" for name in names)

    wait_until(all_run, START_S, "the applications run")


def wait_until(condition: Callable[[], object], limit_s: float, event: str) -> float:
    """Returns how long it took until something was so [s].

    Raises:
        TimeoutError: it never was; names the event.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise TimeoutError(f"{event}: not within {limit_s:g} s")
        time.sleep(POLL_S)
    return time.monotonic() - began
