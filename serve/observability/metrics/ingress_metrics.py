"""Ingress metrics: requests, cache, quotas, breakers and versions.

In:    ReplyStats of every reply; the present state of what guards and divides the requests
Out:   values for the metric registry
Owns:  the metrics of one ingress replica
Never: a client's text, ids or keys as tags
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve.observability.metrics.definitions import (
    AUDIO,
    BREAKER,
    CACHE,
    CACHE_BYTES,
    CACHE_EVICTIONS,
    CACHED_STEPS,
    CHARACTERS,
    CONTINUOUS,
    DEGRADATION_LEVEL,
    DEGRADATION_STEP,
    FAIL_OVERS,
    FIRST_AUDIO,
    IN_FLIGHT,
    INTERRUPTED,
    INTERRUPTIONS,
    JOBS_QUEUED,
    JOBS_WITHOUT_DISK,
    QUARANTINED,
    QUOTAS_UNSHARED,
    REJECTS,
    REPEATED_STEPS,
    REPLICA_KINDS,
    REQUESTS,
    RESUMED,
    RETRIES,
    ROLLBACKS,
    RTF,
    STORE_UNWRITABLE,
    STREAMS,
    TEXT_WARNINGS,
    UNDERRUN,
    UNHEARD,
    UNREAD,
    VERSION_FAILED,
    VERSION_OUT,
    VERSION_REQUESTS,
    VERSION_SHARE,
)
from serve.observability.metrics.registry import MetricRegistry, NewSeries
from serve.observability.reply_stats import CONTINUOUS_S, Outcome, ReplyStats
from serve.resilience.circuit_breaker import Breaker, State
from serve.resilience.quarantine import Quarantine
from serve.resilience.rollout import Rollout

BREAKER_GAUGE = {State.CLOSED: 0.0, State.HALF_OPEN: 0.5, State.OPEN: 1.0}


class IngressMetrics:
    """ReplyObserver that sets metrics, and the ingress's own updates."""

    def __init__(self, new_series: NewSeries) -> None:
        self._registry = MetricRegistry(new_series)

    def finished(self, stats: ReplyStats) -> None:
        """Counts a finished reply."""
        registry = self._registry
        registry.add(REQUESTS, outcome=stats.outcome.value)
        if stats.code:
            registry.add(REJECTS, code=stats.code)
        if stats.first_audio_s is not None:
            registry.observe(FIRST_AUDIO, stats.first_audio_s, streamed=str(stats.streamed).lower())
        registry.add(AUDIO, stats.audio_s)
        for code, count in stats.warnings.items():
            registry.add(TEXT_WARNINGS, count, code=code)
        if stats.is_resumed:
            registry.add(RESUMED)
        if stats.fail_overs:
            registry.add(FAIL_OVERS, stats.fail_overs)
            registry.add(REPEATED_STEPS, stats.repeated_steps)
            registry.observe(INTERRUPTED, stats.interrupted_s)
        if stats.outcome is not Outcome.DONE:
            return
        registry.add(CHARACTERS, stats.characters)
        if stats.audio_s > 0:
            registry.observe(RTF, stats.took_s / stats.audio_s)
        if stats.streamed:
            registry.add(STREAMS)
            registry.observe(UNDERRUN, stats.stalled_s)
            if stats.stalled_s < CONTINUOUS_S:
                registry.add(CONTINUOUS)

    def in_flight_changed(self, in_flight: int) -> None:
        """Sets the number of requests in flight."""
        self._registry.set_gauge(IN_FLIGHT, in_flight)

    def set_unread(self, size: int) -> None:
        """Sets how many bytes are held for clients that read slowly."""
        self._registry.set_gauge(UNREAD, size)

    def set_degradation(self, steps: Sequence[str], level: int) -> None:
        """Sets the number of active degradation steps, and which of all steps are."""
        self._registry.set_gauge(DEGRADATION_LEVEL, level)
        for place, step in enumerate(steps):
            self._registry.set_gauge(DEGRADATION_STEP, place < level, step=step)

    def set_policies(self, breakers: Iterable[Breaker], quarantine: Quarantine, rollout: Rollout) -> None:
        """Updates the metrics of breakers, quarantine and model versions."""
        registry = self._registry
        for breaker in breakers:
            registry.set_gauge(BREAKER, BREAKER_GAUGE[breaker.state], stage=breaker.stage)
            registry.set_total(RETRIES, breaker.retries, stage=breaker.stage)
        registry.set_gauge(QUARANTINED, quarantine.quarantined)
        for version in rollout.versions:
            summary: Mapping[str, Any] = rollout.summary(version)
            registry.set_gauge(VERSION_REQUESTS, summary["requests"], version=version)
            registry.set_gauge(VERSION_FAILED, summary["failed"], version=version)
            registry.set_gauge(VERSION_SHARE, summary["share"], version=version)
            registry.set_gauge(VERSION_OUT, float(bool(rollout.out(version))), version=version)
            registry.set_total(ROLLBACKS, rollout.roll_backs(version), version=version)

    def set_kinds_of_replicas(self, kinds: Mapping[str, int]) -> None:
        """Sets how many kinds of replicas each version has."""
        for version, count in kinds.items():
            self._registry.set_gauge(REPLICA_KINDS, count, version=version)

    def rejected(self, code: str) -> None:
        """Counts a refused request."""
        self._registry.add(REJECTS, code=code)

    def interrupted(self, unheard_steps: int) -> None:
        """Counts an interruption and the steps that were in vain."""
        self._registry.add(INTERRUPTIONS)
        self._registry.add(UNHEARD, unheard_steps)

    def set_quotas(self, is_away: bool) -> None:
        """Sets whether this replica counts quotas alone because Redis is away."""
        self._registry.set_gauge(QUOTAS_UNSHARED, float(is_away))

    def set_store(self, is_unwritable: bool) -> None:
        """Sets whether a store takes no writes."""
        self._registry.set_gauge(STORE_UNWRITABLE, float(is_unwritable))

    def set_jobs(self, waiting_for_disk: int, queued_s: float) -> None:
        """Sets how many jobs of this replica cannot go on because the disk is full, and how long the oldest waits for one."""
        self._registry.set_gauge(JOBS_WITHOUT_DISK, waiting_for_disk)
        self._registry.set_gauge(JOBS_QUEUED, queued_s)

    def set_cache(self, stats: Mapping[str, Any]) -> None:
        """Updates the metrics of the cache from CacheStats."""
        registry = self._registry
        registry.set_total(CACHE, stats["memory_hits"], tier="memory", result="hit")
        registry.set_total(CACHE, stats["shared_hits"], tier="redis", result="hit")
        registry.set_total(CACHE, stats["shared_errors"], tier="redis", result="error")
        registry.set_total(CACHE, stats["joined"], tier="running", result="joined")
        registry.set_total(CACHE, stats["misses"], tier="model", result="miss")
        registry.set_total(CACHED_STEPS, stats["steps"])
        registry.set_total(CACHE_EVICTIONS, stats["evictions"])
        registry.set_gauge(CACHE_BYTES, stats["bytes"])
