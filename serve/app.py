"""App: the root. Builds the deployments from the `args:` of one YAML file.

In:    the args, a plain mapping: `import_path: serve.app:build_app`
Out:   the application
Owns:  the order of construction
Never: requests
"""

import logging
from typing import Any

import ray
from ray.serve import Application

from serve.config.app_config import project_path, read_app_config
from serve.config.config_file import check_file
from serve.config.folders import check_folders
from serve.config.hosts import is_local_host
from serve.config.model_versions import TEXT
from serve.deployments.acoustic_model import AcousticModel
from serve.deployments.ingress import Ingress
from serve.deployments.text_normalizer import TextNormalizer
from serve.deployments.vocoder import Vocoder
from serve.observability.tracing import check_tracing
from serve.remote.ray_private import requires_token
from serve.remote.step_router import router_config

LOG = logging.getLogger("ray.serve")


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
    return exposure(address, requires_token=requires_token())


def build_app(args: dict[str, Any]) -> Application:
    """Validates the args and binds the deployments. Replica counts, queues and devices are Serve's part of the same file.

    Raises:
        ConfigError: the args, or the file they stand in, are wrong, or a folder it names cannot be written.
    """
    config = read_app_config(args)
    listens: str | None = None
    if config.source is not None:
        file = check_file(project_path(config.source))
        file.check_code()
        listens = file.listens
    check_tracing(config.tracing)
    check_folders(config)
    if (risk := exposure_of_this_cluster()) is not None:
        LOG.warning(risk)
    tracing = config.tracing

    def stage(deployment: Any, name: str, *arguments: object) -> Application:
        router = router_config(name, by_steps=deployment is AcousticModel)
        return deployed(deployment.options(name=name, request_router_config=router), *arguments)

    stages = {}
    if config.text.placement == "separate":
        stages[TEXT] = stage(TextNormalizer, TEXT, config.pipelines, tracing)
    for version in config.versions:
        pipeline, checkpoint = version.pipeline, version.pipeline.checkpoint
        beside = pipeline.vocoder if pipeline.vocoder.is_beside_engine else None
        stages[version.acoustic] = stage(AcousticModel, version.acoustic, pipeline.engine, checkpoint, tracing, beside)
        if version.owns_vocoder:
            stages[version.vocoder] = stage(Vocoder, version.vocoder, pipeline.vocoder, checkpoint, tracing)
    return deployed(Ingress, config, stages, listens)


def deployed(deployment: Any, *constructor_args: object) -> Application:
    """Binds a deployment; Serve's decorators hide from type checkers that they return one."""
    application: Application = deployment.bind(*constructor_args)
    return application
