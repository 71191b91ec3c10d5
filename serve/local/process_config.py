"""Process config: what a configuration file with `runtime: process` may have beside `args:`.

In:    the mapping of a file
Out:   every mistake in it
Never: Ray; `args:` by themselves, which serve/config/config_file.py checks
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.config import StrictModel
from serve.config.app_config import read_app_config
from serve.config.config_file import GRPC_PORT, HOSTS, PORT, PROCESS
from serve.config.messages import invalid

OF_RAY = {
    "applications[0].deployments": "one process has no replicas",
    "applications[0].import_path": "no application is imported",
    "applications[0].name": "there is one application",
    "applications[0].route_prefix": "its paths begin at /",
    "applications[0].runtime_env": "set variables where the process is started",
    "controller_options": "there is no controller",
    "logging_config": "the log goes to stderr",
    "proxy_location": "the process listens itself",
}
"""keys of files for Ray Serve -> why there are none here"""
EDGE_LIBRARIES, WITH_EDGE = ("aiomqtt", "cryptography"), "pip install 'chattts-serve[edge]'"
Port = Annotated[int, Field(ge=1, le=65535)]


class HttpOptions(StrictModel):
    """`http_options`."""

    host: str = HOSTS[PROCESS]
    port: Port = PORT
    keep_alive_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 75


class GrpcOptions(StrictModel):
    """`grpc_options`."""

    port: Port = GRPC_PORT


class Application(StrictModel):
    """The one of `applications`."""

    args: dict[str, Any] = Field(default_factory=dict)


class ProcessFile(StrictModel):
    """A file."""

    runtime: Literal["process"]
    http_options: HttpOptions = HttpOptions()
    grpc_options: GrpcOptions | None = None
    """None: no gRPC"""
    applications: list[Application] = Field(min_length=1, max_length=1)


def wrong_keys(document: dict[str, Any]) -> Iterator[str]:
    """Yields what is no part of such a file."""
    for mistake in invalid(ProcessFile, document, ""):
        key = mistake.partition(":")[0]
        why = OF_RAY.get(key)
        yield mistake if why is None else f"{key}: belongs to Ray Serve; with runtime: process {why}. Remove it"


def wrong_values(document: dict[str, Any]) -> Iterator[str]:
    """Yields what is in the way of a box of a fleet, where the file describes one."""
    app = read_app_config(document["applications"][0].get("args", {}))
    if app.edge.broker is None:
        return
    if not all(map(find_spec, EDGE_LIBRARIES)):
        yield f"applications[0].args.edge: a box of a fleet needs what the extra brings: {WITH_EDGE}"
    if not app.versions[0].decodes_itself:
        yield "applications[0].args.edge: engine and vocoder change together: set pipeline.vocoder.placement: with_acoustic"
