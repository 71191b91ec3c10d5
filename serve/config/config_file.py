"""Config file: reads one environment's YAML and checks the whole of it, Serve's own keys included.

In:    configs/*.yaml: Serve's deploy config with our AppConfig in `args:`
Out:   the mapping and the AppConfig, or a ConfigError that names every mistake
Never: starting anything

Serve itself accepts and ignores most misspelt keys, and YAML takes the last of two equal ones. The allowed keys of every level
are read from Serve's own schema classes, so they are those of the installed release.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from ray.runtime_env import RuntimeEnv
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, ControllerOptions, GangSchedulingConfig, RequestRouterConfig
from ray.serve.schema import DeploymentSchema, RayActorOptionsSchema, ServeApplicationSchema, ServeDeploySchema

from pipeline.errors import ConfigError
from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import IMPORT_PATH, PROJECT, UNREAD_BYTES_PER_REPLY, AppConfig, project_path, read_app_config
from serve.config.hosts import is_local_host
from serve.config.messages import dotted, explain, unknown_key
from serve.config.model_versions import RoutesConfig, deployments_of, wrong_routes
from serve.config.policies import STEP_BACKLOG_POLICY, StepBacklogConfig

Loc = tuple[int | str, ...]

# Plain dicts in Serve's schema, whose keys are known all the same.
INSIDE_DICTS: dict[tuple[type[BaseModel], str], type[BaseModel] | frozenset[str]] = {
    (DeploymentSchema, "autoscaling_config"): AutoscalingConfig,
    (DeploymentSchema, "request_router_config"): RequestRouterConfig,
    (AutoscalingPolicy, "policy_kwargs"): frozenset(StepBacklogConfig.model_fields),
    (DeploymentSchema, "gang_scheduling_config"): GangSchedulingConfig,
    (ServeApplicationSchema, "autoscaling_policy"): frozenset({"policy_function", "policy_kwargs"}),
    (ServeApplicationSchema, "runtime_env"): frozenset(RuntimeEnv.known_fields),
    (ControllerOptions, "runtime_env"): frozenset(RuntimeEnv.known_fields),
    (RayActorOptionsSchema, "runtime_env"): frozenset(RuntimeEnv.known_fields),
}
# Accepted by the schema and refused or ignored by Serve.
DEAD_KEYS: dict[type[BaseModel], set[str]] = {ServeApplicationSchema: {"host", "port"}}

# The environment a file may set for Ray's processes: a misspelt variable would be ignored silently.
ENVIRONMENT = frozenset(
    {
        "CHATTTS_INSTRUCTIONS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "PYTHONPATH",
        "PYTORCH_CUDA_ALLOC_CONF",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH",
        "TOKENIZERS_PARALLELISM",
    }
)

# Requests must not wait in Serve's router: one that finds every replica full is polled, not woken
# (twelve requests per second instead of forty, measured). So Serve's limits lie above our own.
ADMISSION_MARGIN = 256  # requests beyond max_in_flight that reach admission, which refuses them with a Retry-After

SERVES_HOST, SERVES_PORT, SERVES_GRPC_PORT = "0.0.0.0", 8000, 9000  # where a file names none


@dataclass(frozen=True, slots=True, eq=False)
class ConfigFile:
    """A file without mistakes."""

    path: Path
    document: dict[str, Any]
    app: AppConfig

    @property
    def listens(self) -> str:
        """The host Serve listens on."""
        return str((self.document.get("http_options") or {}).get("host") or SERVES_HOST)

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
    return (
        list(_wrong_keys(document, ServeDeploySchema, ()))
        or list(_wrong_shape(document))
        or list(_wrong_args(document))
        or list(_wrong_values(document))
        or list(_wrong_sums(document))
        or list(_shared_ports(document))
        or list(_unstated_access(document))
    )


def _wrong_keys(value: Any, allowed: type[BaseModel] | frozenset[str], loc: Loc) -> Iterator[str]:
    """Yields unknown keys, by a walk along Serve's schema."""
    if not isinstance(value, dict):
        return
    keys = allowed if isinstance(allowed, frozenset) else frozenset(allowed.model_fields) - DEAD_KEYS.get(allowed, set())
    for key, inner in value.items():
        here = (*loc, str(key))
        if key not in keys:
            yield unknown_key(dotted("", here), sorted(keys))
        elif key == "args":
            continue  # ours: serve/config/app_config.py checks it
        elif key == "env_vars":
            yield from _wrong_keys(inner, ENVIRONMENT, here)
        elif isinstance(allowed, type):
            below = INSIDE_DICTS.get((allowed, key)) or _model_in(allowed.model_fields[key].annotation)
            if below is None:
                continue
            items = enumerate(inner) if isinstance(inner, list) else [(None, inner)]
            for index, item in items:
                yield from _wrong_keys(item, below, here if index is None else (*here, index))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the schema class inside Optional, Union or List."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, list):
        return next((model for inner in get_args(annotation) if (model := _model_in(inner))), None)
    return None


def _wrong_shape(document: dict[str, Any]) -> Iterator[str]:
    applications = document.get("applications")
    if not isinstance(applications, list) or len(applications) != 1 or not isinstance(applications[0], dict):
        yield "applications: must be a list of exactly one application"


def _wrong_args(document: dict[str, Any]) -> Iterator[str]:
    try:
        read_app_config(document["applications"][0].get("args", {}), at="applications[0].args")
    except ConfigError as error:
        yield from str(error).splitlines()


def _wrong_values(document: dict[str, Any]) -> Iterator[str]:
    """Yields wrong types and bounds by Serve's schema, and wrong names of deployments."""
    application = document["applications"][0]
    if application.get("import_path") != IMPORT_PATH:
        yield f"applications[0].import_path: must be {IMPORT_PATH}, found {application.get('import_path')}"
    names = []
    app = read_app_config(application.get("args", {}))
    known = deployments_of(app.versions)
    beside = {
        version.acoustic.replace("AcousticModel", "Vocoder"): version.acoustic
        for version in app.versions
        if version.decodes_itself
    }
    for index, deployment in enumerate(application.get("deployments") or []):
        at = ("applications", 0, "deployments", index)
        name = deployment.get("name")
        if name in beside:
            yield (
                f"{dotted('', (*at, 'name'))}: {name} is a part of {beside[name]} here (vocoder.placement with_acoustic): "
                "remove this deployment, or set placement to separate"
            )
        elif name not in known:
            yield unknown_key(dotted("", (*at, str(name))), list(known)).replace("unknown key", "unknown deployment")
        if name == "Ingress" and "user_config" in deployment:
            yield from _wrong_routes(deployment["user_config"], app, dotted("", (*at, "user_config")))
        if name in names:
            yield f"{dotted('', (*at, 'name'))}: {name} appears twice"
        names.append(name)
        yield from _wrong_policy(deployment, (*at, "autoscaling_config", "policy"))
        for key, model in (("autoscaling_config", AutoscalingConfig), ("request_router_config", RequestRouterConfig)):
            if key in deployment:
                yield from _invalid(model, deployment[key], dotted("", (*at, key)))
    yield from _invalid(ServeDeploySchema, document, "")


def _wrong_policy(deployment: Mapping[str, Any], at: Loc) -> Iterator[str]:
    """Yields wrong arguments of our policy: Serve's controller would go on with as many replicas as there are."""
    policy = (deployment.get("autoscaling_config") or {}).get("policy") or {}
    if policy.get("policy_function") == STEP_BACKLOG_POLICY:
        yield from _invalid(StepBacklogConfig, policy.get("policy_kwargs") or {}, dotted("", (*at, "policy_kwargs")))


def _wrong_routes(user_config: Any, app: AppConfig, at: str) -> Iterator[str]:
    mistakes = list(_invalid(RoutesConfig, user_config or {}, at))
    yield from mistakes or (
        f"{at}.{mistake}" for mistake in wrong_routes(RoutesConfig.model_validate(user_config or {}), app.versions)
    )


def _invalid(model: type[BaseModel], value: Any, at: str) -> Iterator[str]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        yield from explain(model, error, at)
    except (ValueError, TypeError, ImportError) as error:
        yield f"{at or 'the file'}: {error}"


def _wrong_sums(document: dict[str, Any]) -> Iterator[str]:
    """Yields limits that must lie above other limits and do not."""
    application = document["applications"][0]
    app = read_app_config(application.get("args", {}))
    deployments = {deployment["name"]: deployment for deployment in application.get("deployments") or []}
    for name, (floor, formula) in least_ongoing(app).items():
        limit = _option(deployments, name, "max_ongoing_requests")
        if limit < floor:
            yield f"{name}.max_ongoing_requests: {limit} is below {formula} = {floor}"
    queue = _option(deployments, "Ingress", "max_queued_requests")
    if 0 <= queue < ADMISSION_MARGIN:
        yield f"Ingress.max_queued_requests: {queue} is below {ADMISSION_MARGIN}: Serve itself would refuse a burst of requests"


def least_ongoing(app: AppConfig) -> dict[str, tuple[int, str]]:
    """Returns deployment -> the least max_ongoing_requests that its other limits allow, and how it follows from them."""
    least = {"Ingress": (app.limits.max_in_flight + ADMISSION_MARGIN, f"limits.max_in_flight + {ADMISSION_MARGIN}")}
    for version in app.versions:
        engine, speech = version.pipeline.engine, version.pipeline.speech
        # An admitted request's further segments wait in the engine without a limit of their own.
        segments = speech.parallel_segments * (engine.slots + engine.max_waiting)
        least[version.acoustic] = (segments, "speech.parallel_segments * (engine.slots + engine.max_waiting)")
        if not version.decodes_itself:
            least[version.vocoder] = (version.pipeline.vocoder.rows, "vocoder.rows")
    sockets = app.limits.max_in_flight + app.conversations.max_sockets  # a socket is one of Serve's requests while it is open
    if sockets > least["Ingress"][0]:
        least["Ingress"] = sockets, "limits.max_in_flight + conversations.max_sockets"
    unread = app.limits.max_in_flight + ADMISSION_MARGIN + app.limits.max_unread_bytes // UNREAD_BYTES_PER_REPLY
    if unread > least["Ingress"][0]:  # a reply without a place, which a slow client reads, is one of Serve's requests too
        replies = f"limits.max_unread_bytes / {UNREAD_BYTES_PER_REPLY}"
        least["Ingress"] = unread, f"limits.max_in_flight + {ADMISSION_MARGIN} + {replies}"
    return least


def _shared_ports(document: dict[str, Any]) -> Iterator[str]:
    """Yields listeners of a node that would have one port."""
    http, grpc = document.get("http_options") or {}, document.get("grpc_options") or {}
    wyoming = read_app_config(document["applications"][0].get("args", {})).wyoming
    named = {"http_options.port": http.get("port") or SERVES_PORT, "applications[0].args.wyoming.port": wyoming.port}
    if grpc.get("grpc_servicer_functions"):
        named["grpc_options.port"] = grpc.get("port") or SERVES_GRPC_PORT
    first: dict[int, str] = {}
    for key, port in named.items():
        if port is not None and first.setdefault(port, key) != key:
            yield f"{key}: {port} is the port of {first[port]} already: give it another one"


def _unstated_access(document: dict[str, Any]) -> Iterator[str]:
    """Yields a mistake if other machines can reach the service and keys.open is not set."""
    application = document["applications"][0]
    host = str((document.get("http_options") or {}).get("host") or SERVES_HOST)
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


def _option(deployments: Mapping[str, Mapping[str, Any]], name: str, key: str) -> Any:
    default = {"max_ongoing_requests": 5, "max_queued_requests": -1}[key]  # Serve's
    return deployments.get(name, {}).get(key, default)
