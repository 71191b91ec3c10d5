"""Config file: reads one environment's YAML and checks the whole of it, Serve's own keys included.

In:    configs/*.yaml: the runtime's part, with our AppConfig in `args:`
Out:   the mapping and the AppConfig, or a ConfigError that names every mistake
Never: starting anything

A file is for Ray Serve, or, with `runtime: process`, for a service in one process. What is not `args:` is checked by the
runtime that reads it, and only that one is loaded.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import PROJECT, AppConfig, project_path, read_app_config
from serve.config.hosts import is_local_host

PROCESS = "process"
CHECKS = {None: "serve.remote.deploy_config", PROCESS: "serve.local.process_config"}
"""`runtime` -> the module that checks its part of a file: `wrong_keys` and, once there are none, `wrong_values`"""
WITH_RAY = "pip install 'chattts-serve[ray]'"
HOSTS = {None: "0.0.0.0", PROCESS: "127.0.0.1"}  # where a file names none
PORT, GRPC_PORT = 8000, 9000


@dataclass(frozen=True, slots=True, eq=False)
class ConfigFile:
    """A file without mistakes."""

    path: Path
    document: dict[str, Any]
    app: AppConfig

    @property
    def listens(self) -> str:
        """The host the service listens on."""
        return _host(self.document)

    @property
    def port(self) -> int:
        """The port of HTTP."""
        return int((self.document.get("http_options") or {}).get("port") or PORT)

    @property
    def is_one_process(self) -> bool:
        """True if the service is one process; False if Ray Serve runs it."""
        return self.document.get("runtime") == PROCESS

    def check_code(self) -> None:
        """Checks that this is the code the file names, if it names any: `PYTHONPATH` in the application's runtime_env.

        Raises:
            ConfigError: it is not. Ray puts the folder it was started in before every other one.
        """
        (application,) = self.document["applications"]
        named = ((application.get("runtime_env") or {}).get("env_vars") or {}).get("PYTHONPATH")
        if named is not None and PROJECT not in [Path(folder).resolve() for folder in named.split(os.pathsep)]:
            raise ConfigError(
                f"{self.path}: runtime_env names the code in {named}, and {PROJECT} was imported: "
                "start Ray in a folder that holds no `serve` and no `pipeline`"
            )

    def deployment(self, name: str) -> dict[str, Any]:
        """Returns Serve's options of one deployment; empty if the file has none."""
        (application,) = self.document["applications"]
        options: dict[str, Any] = next((d for d in application.get("deployments", []) if d["name"] == name), {})
        return options


def check_file(path: Path) -> ConfigFile:
    """Reads and checks a file.

    Raises:
        ConfigError: names all mistakes, one per line.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    mistakes = find_mistakes(document)
    if not mistakes:
        source = document["applications"][0].get("args", {}).get("source")
        if source is not None and project_path(source).resolve() != path.resolve():
            mistakes = [f"applications[0].args.source: names another file, {source}"]
    if mistakes:
        raise ConfigError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return ConfigFile(path, document, read_app_config(document["applications"][0].get("args", {})))


def find_mistakes(document: Any) -> list[str]:
    """Returns every mistake of a parsed file; later checks run only if the earlier ones pass."""
    if not isinstance(document, dict):
        return ["the file must be a mapping with the key applications"]
    runtime = document.get("runtime")
    if "runtime" in document and runtime != PROCESS:
        return [f"runtime: may be {PROCESS}; a file without it is for Ray Serve; found {runtime!r}"]
    try:
        part = import_module(CHECKS[runtime])
    except ModuleNotFoundError as missing:
        if missing.name != "ray":
            raise
        return [f"the file is for Ray Serve, which is not installed: {WITH_RAY}, or use configs/box.yaml, which needs no Ray"]
    return (
        list(part.wrong_keys(document))
        or list(_wrong_shape(document))
        or list(_wrong_args(document))
        or list(part.wrong_values(document))
        or list(_shared_ports(document))
        or list(_unstated_access(document))
    )


def _wrong_shape(document: dict[str, Any]) -> Iterator[str]:
    applications = document.get("applications")
    if not isinstance(applications, list) or len(applications) != 1 or not isinstance(applications[0], dict):
        yield "applications: must be a list of exactly one application"


def _wrong_args(document: dict[str, Any]) -> Iterator[str]:
    try:
        read_app_config(document["applications"][0].get("args", {}), at="applications[0].args")
    except ConfigError as error:
        yield from str(error).splitlines()


def _shared_ports(document: dict[str, Any]) -> Iterator[str]:
    """Yields listeners of a node that would have one port."""
    http, grpc = document.get("http_options") or {}, document.get("grpc_options") or {}
    wyoming = read_app_config(document["applications"][0].get("args", {})).wyoming
    named = {"http_options.port": http.get("port") or PORT, "applications[0].args.wyoming.port": wyoming.port}
    if grpc.get("grpc_servicer_functions") or (grpc and document.get("runtime") == PROCESS):
        named["grpc_options.port"] = grpc.get("port") or GRPC_PORT
    first: dict[int, str] = {}
    for key, port in named.items():
        if port is not None and first.setdefault(port, key) != key:
            yield f"{key}: {port} is the port of {first[port]} already: give it another one"


def _unstated_access(document: dict[str, Any]) -> Iterator[str]:
    """Yields a mistake if other machines can reach the service and keys.open is not set."""
    application = document["applications"][0]
    host = _host(document)
    if not is_local_host(host) and "open" not in (application.get("args", {}).get("keys") or {}):
        yield (
            f"http_options.host: {host} can be reached by other machines: set applications[0].args.keys.open, false to require "
            "keys (chattts-serve keys add NAME), true behind another gateway"
        )
    app = read_app_config(application.get("args", {}))
    wyoming = app.wyoming
    if wyoming.port is not None and not is_local_host(wyoming.host) and wyoming.key is None and app.keys.open is not True:
        yield (
            f"applications[0].args.wyoming.host: {wyoming.host} can be reached by other machines, and Wyoming has no keys: set "
            "wyoming.key, the id of a key whose lanes and quotas its clients have, or keys.open: true"
        )


def _host(document: dict[str, Any]) -> str:
    return str((document.get("http_options") or {}).get("host") or HOSTS[document.get("runtime")])
