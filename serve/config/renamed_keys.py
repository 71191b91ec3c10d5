"""Renamed keys: what keys and values of 0.1.0 are called now.

In:    the dotted path of a key that is unknown, or of a value that is refused
Out:   the new name, if it has one
Owns:  the two tables
Never: accepting an old name
"""

from collections.abc import Collection

SINCE = "0.2"

RENAMED_KEYS = {
    "offer": "source_offer",
    "voices.making_timeout_s": "voices.creation_timeout_s",
    "lanes.interactive_s": "lanes.interactive_timeout_s",
    "lanes.bulk_s": "lanes.bulk_timeout_s",
    "tracing.sample": "tracing.sample_ratio",
    "breaker.failures": "breaker.min_failures",
    "breaker.share": "breaker.failure_ratio",
    "quarantine.memory_s": "quarantine.duration_s",
    "degrade.rungs": "degrade.steps",
    "degrade.up": "degrade.escalate_above",
    "degrade.down": "degrade.recover_below",
    "degrade.climb_s": "degrade.escalate_after_s",
    "degrade.rest_s": "degrade.recover_after_s",
    "pipeline.text.read_cpu_s": "pipeline.text.cpu_s_per_1000_chars",
    "pipeline.text.read_wall_s": "pipeline.text.hang_timeout_s",
    "pipeline.engine.max_parked": "pipeline.engine.max_preempted",
    "user_config.shadow.at_most": "user_config.shadow.max_concurrent",
    "user_config.shadow.room": "user_config.shadow.max_load",
    "user_config.shadow.longest_s": "user_config.shadow.max_audio_s",
    "user_config.probe.gpu_mem_percent": "user_config.probe.max_gpu_memory_percent",
    "user_config.probe.bad": "user_config.probe.failure_threshold",
    "user_config.probe.good": "user_config.probe.success_threshold",
}

RENAMED_VALUES = {
    ("pipeline.vocoder.method", "carry"): "incremental",
    ("policy.policy_function", "serve.scaling:WorkAhead"): "serve.resilience.autoscaling:StepBacklogPolicy",
    ("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "serve.edge:middlewares"): "serve.http.proxy_middleware:middlewares",
}


def new_key(path: str, allowed: Collection[str]) -> str | None:
    """The new dotted path of a key, or None.

    Args:
        path: where the unknown key stands, such as applications[0].args.degrade.rungs.
        allowed: the keys that may stand there.
    """
    for old, new in RENAMED_KEYS.items():
        if _ends_in(path, old) and new.rpartition(".")[2] in allowed:
            return new
    return None


def new_value(path: str, value: object) -> str | None:
    """The new name of a value at a dotted path, or None."""
    for (key, old), new in RENAMED_VALUES.items():
        if value == old and _ends_in(path, key):
            return new
    return None


def _ends_in(path: str, old: str) -> bool:
    """True if `path` is `old`, wherever its section stands: below `pipeline`, or below one of `models`."""
    return f".{path}".endswith(f".{old.removeprefix('pipeline.')}")
