"""Deploying: applications on the Ray of this process, as `serve run` deploys them.

In:    documents such as those of configs/, Ray initialised
Out:   the applications run, or an exception with Serve's own words
Owns:  nothing: Serve and its applications outlive the call
Never: the start or the end of Ray
"""

from typing import Any

from ray import serve
from ray.serve._private.api import serve_start
from ray.serve.schema import ServeDeploySchema

from scripts.chaos.waiting import wait_until

START_S = 600.0  # seconds where the machine is idle


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
        found = serve.status().applications
        for name in names:
            if name in found and found[name].status == "DEPLOY_FAILED":
                raise RuntimeError(found[name].message)
        return all(name in found and found[name].status == "RUNNING" for name in names)

    wait_until(all_run, START_S, "the applications run")
