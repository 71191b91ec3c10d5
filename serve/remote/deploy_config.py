"""Deploy config: Serve's part of a configuration file.

In:    the mapping of a file
Out:   every mistake in what Serve reads, and in how its limits fit ours
Never: `args:`, which serve/config/config_file.py checks

Serve itself accepts and ignores most misspelt keys. The allowed keys of every level are read from Serve's own schema classes,
so they are those of the installed release.
"""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from ray.runtime_env import RuntimeEnv
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, ControllerOptions, GangSchedulingConfig, RequestRouterConfig
from ray.serve.schema import DeploymentSchema, RayActorOptionsSchema, ServeApplicationSchema, ServeDeploySchema

from serve.config.app_config import IMPORT_PATH, UNREAD_BYTES_PER_REPLY, AppConfig, read_app_config
from serve.config.messages import dotted, invalid, unknown_key
from serve.config.model_versions import TEXT, RoutesConfig, wrong_routes
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


def wrong_keys(document: dict[str, Any]) -> Iterator[str]:
    """Yields the keys of a file that Serve does not know."""
    yield from _wrong_keys(document, ServeDeploySchema, ())


def wrong_values(document: dict[str, Any]) -> Iterator[str]:
    """Yields wrong types, bounds and names of deployments; where there are none, limits that do not fit each other."""
    yield from list(_wrong_settings(document)) or _wrong_sums(document)


def _wrong_settings(document: dict[str, Any]) -> Iterator[str]:
    application = document["applications"][0]
    if application.get("import_path") != IMPORT_PATH:
        yield f"applications[0].import_path: must be {IMPORT_PATH}, found {application.get('import_path')}"
    names = []
    app = read_app_config(application.get("args", {}))
    if app.edge.broker is not None:
        yield "applications[0].args.edge: a box of a fleet is one process: set runtime: process, or remove edge"
    known = app.deployments
    beside = {
        version.acoustic.replace("AcousticModel", "Vocoder"): (version.acoustic, "vocoder.placement with_acoustic")
        for version in app.versions
        if version.decodes_itself
    }
    if TEXT not in known:
        beside[TEXT] = ("Ingress", "text.placement ingress")
    for index, deployment in enumerate(application.get("deployments") or []):
        at = ("applications", 0, "deployments", index)
        name = deployment.get("name")
        if name in beside:
            whole, why = beside[name]
            yield (
                f"{dotted('', (*at, 'name'))}: {name} is a part of {whole} here ({why}): "
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
        if "request_router_config" in deployment and name != "Ingress":
            yield f"{dotted('', (*at, 'request_router_config'))}: the service sets the router of its stages; remove this key"
        for key, model in (("autoscaling_config", AutoscalingConfig), ("request_router_config", RequestRouterConfig)):
            if key in deployment:
                yield from invalid(model, deployment[key], dotted("", (*at, key)))
    yield from invalid(ServeDeploySchema, document, "")


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


def _wrong_policy(deployment: Mapping[str, Any], at: Loc) -> Iterator[str]:
    """Yields wrong arguments of our policy: Serve's controller would go on with as many replicas as there are."""
    policy = (deployment.get("autoscaling_config") or {}).get("policy") or {}
    if policy.get("policy_function") == STEP_BACKLOG_POLICY:
        yield from invalid(StepBacklogConfig, policy.get("policy_kwargs") or {}, dotted("", (*at, "policy_kwargs")))


def _wrong_routes(user_config: Any, app: AppConfig, at: str) -> Iterator[str]:
    mistakes = list(invalid(RoutesConfig, user_config or {}, at))
    yield from mistakes or (
        f"{at}.{mistake}" for mistake in wrong_routes(RoutesConfig.model_validate(user_config or {}), app.versions)
    )


def _option(deployments: Mapping[str, Mapping[str, Any]], name: str, key: str) -> Any:
    default = {"max_ongoing_requests": 5, "max_queued_requests": -1}[key]  # Serve's
    return deployments.get(name, {}).get(key, default)
