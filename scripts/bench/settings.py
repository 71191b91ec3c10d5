"""Settings: the configuration with which a system under test starts.

In:    a file of configs/, what a scenario changes in it
Out:   a whole document, as a YAML file would give it
Never: checking it: the service does
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import read_app_config
from serve.config.config_file import PROCESS
from serve.config.policies import STEP_BACKLOG_POLICY


@dataclass(frozen=True)
class Settings:
    """The configuration of the service under test."""

    base: Path
    """a file of configs/; `document` changes only what measuring needs"""
    checkpoint: str
    path: str
    """`fast`: as `make serve`; `plain`: Serve's default data path; `process`: without Ray, in one process"""
    changes: dict[str, Any] = field(default_factory=dict)
    """dotted path below `args` -> value"""
    replicas: dict[str, int] = field(default_factory=dict)
    """deployment -> how many replicas it has, whatever the load"""
    sleeps_after_s: float | None = None
    """how long a stage has nothing to do before it has no replica; None: as configured [s]"""
    waiting_calls: int | None = None
    """how many calls any deployment takes at once, and queues; None: as configured"""


def document(settings: Settings, port: int, source: Path | None) -> dict[str, Any]:
    """Returns the configuration, with lengths that follow from the text and time-outs for slow machines."""
    contents: dict[str, Any] = copy.deepcopy(parse_yaml(settings.base.read_text()))
    contents["http_options"] |= {"host": "127.0.0.1", "port": port}
    args = contents["applications"][0]["args"]
    args["source"] = None if source is None else str(source)
    timeouts = {"first_audio_timeout_s": 600.0, "chunk_timeout_s": 600.0, "total_timeout_s": 3600.0}
    changes = {
        "pipeline.checkpoint": settings.checkpoint,
        "pipeline.engine.ignore_eos": True,
        **{f"limits.{key}": value for key, value in timeouts.items()},
        **settings.changes,
    }
    if source is not None:  # else it would continue the jobs of other services of this machine
        changes |= {"voices.store": str(source.parent / "store.sqlite"), "jobs.folder": str(source.parent / "jobs")}
    for path, value in changes.items():
        *parents, key = path.split(".")
        section = args
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = value
    if settings.path == PROCESS:
        return {"runtime": PROCESS, "http_options": {"host": "127.0.0.1", "port": port}, "applications": [{"args": args}]}
    application = contents["applications"][0]
    for deployment in application["deployments"]:
        if settings.waiting_calls is not None:
            deployment |= dict.fromkeys(("max_ongoing_requests", "max_queued_requests"), settings.waiting_calls)
        if settings.sleeps_after_s is not None and deployment["name"] != "Ingress":
            deployment.pop("num_replicas", None)
            deployment["autoscaling_config"] = from_zero(settings.sleeps_after_s)
        if deployment["name"] in settings.replicas:
            deployment.pop("autoscaling_config", None)
            number = deployment["num_replicas"] = settings.replicas[deployment["name"]]
            deployment["ray_actor_options"]["num_cpus"] /= number  # they share the place of one
    deployments = read_app_config(args).deployments
    application["deployments"] = [entry for entry in application["deployments"] if entry["name"] in deployments]
    return contents


def from_zero(sleeps_after_s: float) -> dict[str, Any]:
    """Returns the autoscaling_config of a stage that has no replica while it has no work, as docs/ray.md shows it."""
    return {
        "min_replicas": 0,
        "initial_replicas": 1,
        "max_replicas": 1,
        "upscale_delay_s": 0,
        "downscale_delay_s": sleeps_after_s,
        "metrics_interval_s": 1,
        "look_back_period_s": 3,
        "policy": {"policy_function": STEP_BACKLOG_POLICY},
    }
