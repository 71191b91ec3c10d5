"""Metrics: names, units, buckets, and who moves them. The only file that talks to a metrics registry.

In:    ReplyStats of the ingress; what text worker, engine and vocoder say of themselves
Out:   Ray metrics; Ray's exporter puts `ray_` before every name
Owns:  the metrics of this replica
Never: a client's text, ids or keys as tags

METRICS is the list: the dashboard and the alerts (scripts/generate/monitoring.py) name nothing that is not in it.
Serve adds the tags deployment, replica and application.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ray.serve import metrics as ray_metrics

from pipeline.types import Lane
from serve.observability.reply_stats import CONTINUOUS_S, Outcome, ReplyStats
from serve.resilience.autoscaling import Load
from serve.resilience.circuit_breaker import Breaker, State
from serve.resilience.quarantine import Quarantine
from serve.versions.rollout import Rollout
from serve.versions.shadow import Comparison

PERIOD_S = 1.0  # how often gauges follow what they show


class Kind(StrEnum):
    """Prometheus' three."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the list."""

    kind: Kind
    name: str
    """without Ray's prefix; the unit is its suffix"""
    description: str
    tags: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """The name Prometheus sees."""
        return f"ray_{self.name}"


# Buckets lie close around the goals: first audio within 0.15 s on a GPU and 2.5 s on two CPU cores, a real-time factor below 1.
FIRST_AUDIO_BUCKETS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0, 6.0, 10.0, 15.0, 30.0)
RTF_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0)
STALL_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RATIO_BUCKETS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0)
DECIBEL_BUCKETS = (0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 12.0)
WAIT_BUCKETS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

FIRST_AUDIO = Metric(Kind.HISTOGRAM, "chattts_ttfa_seconds", "request in, first audio out", ("streamed",), FIRST_AUDIO_BUCKETS)
RTF = Metric(Kind.HISTOGRAM, "chattts_rtf", "seconds of work a second of audio, whole requests", (), RTF_BUCKETS)
UNDERRUN = Metric(
    Kind.HISTOGRAM, "chattts_underrun_seconds", "how long a listener waited in the middle of a stream", (), STALL_BUCKETS
)
STREAMS = Metric(Kind.COUNTER, "chattts_streams_total", "streams heard to their end")
CONTINUOUS = Metric(
    Kind.COUNTER, "chattts_continuity_ok_total", f"streams whose listener waited less than {CONTINUOUS_S:g} s in all"
)
REQUESTS = Metric(Kind.COUNTER, "chattts_requests_total", "requests by how they ended", ("outcome",))
REJECTS = Metric(Kind.COUNTER, "chattts_rejects_total", "requests refused or cut, by error code", ("code",))
IN_FLIGHT = Metric(Kind.GAUGE, "chattts_in_flight", "requests inside an ingress replica")
AUDIO = Metric(Kind.COUNTER, "chattts_audio_seconds_total", "audio sent")
CHARACTERS = Metric(Kind.COUNTER, "chattts_characters_total", "characters of requests that were spoken")
TEXT_WARNINGS = Metric(
    Kind.COUNTER, "chattts_text_warnings_total", "places in texts that could not be spoken as written, by code", ("code",)
)
BREAKER = Metric(Kind.GAUGE, "chattts_breaker_open", "of a stage: 0 closed, 0.5 half open, 1 open", ("stage",))
RETRIES = Metric(Kind.COUNTER, "chattts_retries_total", "calls of a stage tried again because a replica died", ("stage",))
QUARANTINED = Metric(Kind.GAUGE, "chattts_quarantined", "requests refused because they have ended replicas, at this moment")
QUOTAS_ALONE = Metric(
    Kind.GAUGE, "chattts_quotas_alone", "1: Redis is away, and this replica counts quotas alone, a share of each"
)
CACHE = Metric(
    Kind.COUNTER, "chattts_cache_total", "segments looked up: found, joined while they were made, or made", ("tier", "result")
)
CACHED_STEPS = Metric(Kind.COUNTER, "chattts_cached_steps_total", "steps heard without being made again")
CACHE_BYTES = Metric(Kind.GAUGE, "chattts_cache_bytes", "sampled steps kept in memory")
CACHE_EVICTIONS = Metric(Kind.COUNTER, "chattts_cache_evictions_total", "segments that made room for others")
DEGRADE_LEVEL = Metric(Kind.GAUGE, "chattts_degrade_level", "rungs of the degrade ladder in force")
VERSION_REQUESTS = Metric(Kind.GAUGE, "chattts_version_requests", "requests of a version its roll-back counts", ("version",))
VERSION_FAILED = Metric(Kind.GAUGE, "chattts_version_failed", "those of them that failed", ("version",))
VERSION_SHARE = Metric(Kind.GAUGE, "chattts_version_share", "of the requests for a version's name", ("version",))
VERSION_OUT = Metric(Kind.GAUGE, "chattts_version_out", "1: rolled back, or its probes find trouble", ("version",))
ROLL_BACKS = Metric(Kind.COUNTER, "chattts_roll_backs_total", "versions that lost their share", ("version",))
SHADOWS = Metric(Kind.COUNTER, "chattts_shadow_total", "shadow runs by what became of them", ("version", "result"))
SHADOW_DURATION = Metric(
    Kind.HISTOGRAM, "chattts_shadow_duration_ratio", "a shadow's audio over the real one", ("version",), RATIO_BUCKETS
)
SHADOW_LOUDNESS = Metric(
    Kind.HISTOGRAM, "chattts_shadow_loudness_db", "how much louder or quieter a shadow is", ("version",), DECIBEL_BUCKETS
)

SLOTS = Metric(Kind.GAUGE, "chattts_slots", "sequences the engine can decode at once")
BATCH_ROWS = Metric(Kind.GAUGE, "chattts_batch_rows", "sequences it decodes now")
WAITING_ROWS = Metric(Kind.GAUGE, "chattts_waiting_rows", "sequences that wait for a slot")
STEP = Metric(Kind.GAUGE, "chattts_step_seconds", "running mean of a decode step")
STEPS = Metric(Kind.COUNTER, "chattts_steps_total", "steps made; 46.875 are a second of audio")
SEGMENTS = Metric(Kind.COUNTER, "chattts_segments_total", "segments that ended by themselves")
QUEUE_WAIT = Metric(Kind.HISTOGRAM, "chattts_queue_wait_seconds", "from submission to a slot", ("lane",), WAIT_BUCKETS)
PARKED = Metric(Kind.COUNTER, "chattts_parked_total", "bulk sequences interrupted for interactive ones")
WASTED = Metric(Kind.COUNTER, "chattts_wasted_steps_total", "steps made for nobody, by why", ("reason",))
KV_CACHE = Metric(Kind.GAUGE, "chattts_kv_bytes", "memory of the KV cache")

BUSY = Metric(Kind.GAUGE, "chattts_busy", "share of a replica of text, engine or vocoder that is in use")
BACKLOG = Metric(Kind.GAUGE, "chattts_backlog_seconds", "how long a replica would need for what waits at it")

TEXT_WAITING = Metric(Kind.GAUGE, "chattts_text_waiting", "texts that wait for the text worker")
TEXT_READ = Metric(Kind.GAUGE, "chattts_text_read_seconds", "mean time of the text worker's latest answers")
TEXT_ANSWERS = Metric(Kind.COUNTER, "chattts_text_answers_total", "answers of the text worker, health checks included")
TEXT_RESTARTS = Metric(Kind.COUNTER, "chattts_text_restarts_total", "text workers that died or hung and were replaced")

VOCODER_WAITING = Metric(Kind.GAUGE, "chattts_vocoder_waiting", "calls that wait for the vocoder")
VOCODER_CALL = Metric(Kind.GAUGE, "chattts_vocoder_call_seconds", "mean time of the vocoder's latest calls")
VOCODER_CALLS = Metric(Kind.COUNTER, "chattts_vocoder_calls_total", "calls of the vocoder's network")
VOCODER_JOBS = Metric(Kind.COUNTER, "chattts_vocoder_jobs_total", "windows, or runs of steps, decoded")

HOW_OPEN = {State.CLOSED: 0.0, State.HALF_OPEN: 0.5, State.OPEN: 1.0}

METRICS: tuple[Metric, ...] = (
    FIRST_AUDIO, RTF, UNDERRUN, STREAMS, CONTINUOUS, REQUESTS, REJECTS, IN_FLIGHT, AUDIO, CHARACTERS, TEXT_WARNINGS,
    BREAKER, RETRIES, QUARANTINED, QUOTAS_ALONE,
    CACHE, CACHED_STEPS, CACHE_BYTES, CACHE_EVICTIONS,
    DEGRADE_LEVEL,
    VERSION_REQUESTS, VERSION_FAILED, VERSION_SHARE, VERSION_OUT, ROLL_BACKS, SHADOWS, SHADOW_DURATION, SHADOW_LOUDNESS,
    SLOTS, BATCH_ROWS, WAITING_ROWS, STEP, STEPS, SEGMENTS, QUEUE_WAIT, PARKED, WASTED, KV_CACHE,
    BUSY, BACKLOG, TEXT_WAITING, TEXT_READ, TEXT_ANSWERS, TEXT_RESTARTS,
    VOCODER_WAITING, VOCODER_CALL, VOCODER_CALLS, VOCODER_JOBS,
)  # fmt: skip


class _Registered:
    """Metrics of this replica, each made when it is first moved: a replica exports what it has."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._totals: dict[tuple[str, ...], float] = {}

    def add(self, metric: Metric, amount: float = 1.0, **tags: str) -> None:
        """Move a counter; Ray refuses to add nothing."""
        if amount > 0:
            self._of(metric).inc(amount, tags=tags)

    def follow(self, metric: Metric, total: float, **tags: str) -> None:
        """Bring a counter up to a total somebody else keeps."""
        series = (metric.name, *tags.values())
        self.add(metric, total - self._totals.get(series, 0.0), **tags)
        self._totals[series] = total

    def show(self, metric: Metric, value: float, **tags: str) -> None:
        """Set a gauge."""
        self._of(metric).set(value, tags=tags)

    def show_load(self, load: Load) -> None:
        """Set what replicas are scaled by."""
        self.show(BUSY, load.busy)
        self.show(BACKLOG, load.backlog_s)

    def observe(self, metric: Metric, value: float, **tags: str) -> None:
        """Put a value into a histogram."""
        self._of(metric).observe(value, tags=tags)

    def _of(self, metric: Metric) -> Any:
        if metric.name not in self._made:
            self._made[metric.name] = _make(metric)
        return self._made[metric.name]


class IngressMetrics:
    """serve/observability/reply_stats.py, ReplyObserver, over Ray's registry."""

    def __init__(self) -> None:
        self._registered = _Registered()

    def finished(self, stats: ReplyStats) -> None:
        """See ReplyObserver."""
        registered = self._registered
        registered.add(REQUESTS, outcome=stats.outcome.value)
        if stats.code:
            registered.add(REJECTS, code=stats.code)
        if stats.first_audio_s is not None:
            registered.observe(FIRST_AUDIO, stats.first_audio_s, streamed=str(stats.streamed).lower())
        registered.add(AUDIO, stats.audio_s)
        for code, count in stats.warnings.items():
            registered.add(TEXT_WARNINGS, count, code=code)
        if stats.outcome is not Outcome.DONE:
            return
        registered.add(CHARACTERS, stats.characters)
        if stats.audio_s > 0:
            registered.observe(RTF, stats.took_s / stats.audio_s)
        if stats.streamed:
            registered.add(STREAMS)
            registered.observe(UNDERRUN, stats.stalled_s)
            if stats.stalled_s < CONTINUOUS_S:
                registered.add(CONTINUOUS)

    def in_flight_changed(self, in_flight: int) -> None:
        """See ReplyObserver."""
        self._registered.show(IN_FLIGHT, in_flight)

    def degraded(self, level: int) -> None:
        """How many rungs are in force."""
        self._registered.show(DEGRADE_LEVEL, level)

    def compared(self, comparison: Comparison) -> None:
        """A shadow run is over."""
        registered, version = self._registered, comparison.version
        registered.add(SHADOWS, version=version, result=comparison.result)
        if comparison.duration_ratio is not None:
            registered.observe(SHADOW_DURATION, comparison.duration_ratio, version=version)
        if comparison.loudness_db is not None:
            registered.observe(SHADOW_LOUDNESS, abs(comparison.loudness_db), version=version)

    def show(self, breakers: Iterable[Breaker], quarantine: Quarantine, rollout: Rollout) -> None:
        """Follow what guards the stages and shares out the requests."""
        registered = self._registered
        for breaker in breakers:
            registered.show(BREAKER, HOW_OPEN[breaker.state], stage=breaker.stage)
            registered.follow(RETRIES, breaker.retries, stage=breaker.stage)
        registered.show(QUARANTINED, quarantine.held)
        for version in rollout.versions:
            shown: Mapping[str, Any] = rollout.shown(version)
            registered.show(VERSION_REQUESTS, shown["requests"], version=version)
            registered.show(VERSION_FAILED, shown["failed"], version=version)
            registered.show(VERSION_SHARE, shown["share"], version=version)
            registered.show(VERSION_OUT, float(bool(rollout.out(version))), version=version)
            registered.follow(ROLL_BACKS, rollout.roll_backs(version), version=version)

    def rejected(self, code: str) -> None:
        """See ReplyObserver."""
        self._registered.add(REJECTS, code=code)

    def show_quotas(self, is_away: bool) -> None:
        """Whether replicas that should count together do not."""
        self._registered.show(QUOTAS_ALONE, float(is_away))

    def show_cache(self, stats: Mapping[str, Any]) -> None:
        """Follow CacheStats."""
        registered = self._registered
        registered.follow(CACHE, stats["memory_hits"], tier="memory", result="hit")
        registered.follow(CACHE, stats["shared_hits"], tier="redis", result="hit")
        registered.follow(CACHE, stats["shared_errors"], tier="redis", result="error")
        registered.follow(CACHE, stats["joined"], tier="flight", result="joined")
        registered.follow(CACHE, stats["misses"], tier="model", result="miss")
        registered.follow(CACHED_STEPS, stats["steps"])
        registered.follow(CACHE_EVICTIONS, stats["evictions"])
        registered.show(CACHE_BYTES, stats["bytes"])


class EngineMetrics:
    """pipeline/engine/observer.py, EngineWatch, over Ray's registry; called on the engine's thread."""

    def __init__(self) -> None:
        self._registered = _Registered()

    def placed(self, waited_s: float, lane: Lane) -> None:
        """See EngineWatch."""
        self._registered.observe(QUEUE_WAIT, waited_s, lane=lane.value)

    def parked(self) -> None:
        """See EngineWatch."""
        self._registered.add(PARKED)

    def wasted(self, steps: int, reason: str) -> None:
        """See EngineWatch."""
        self._registered.add(WASTED, steps, reason=reason)

    def show(self, stats: Mapping[str, Any], steps_per_round: int, load: Load) -> None:
        """Follow EngineStats and the load they amount to."""
        registered = self._registered
        registered.show_load(load)
        registered.show(SLOTS, stats["slots"])
        registered.show(BATCH_ROWS, stats["slots_used"])
        registered.show(WAITING_ROWS, stats["waiting"])
        registered.show(STEP, stats["round_s"] / steps_per_round)
        registered.show(KV_CACHE, stats["kv_bytes"])
        registered.follow(STEPS, stats["steps"])
        registered.follow(SEGMENTS, stats["sequences"])


class TextMetrics:
    """TextStats over Ray's registry."""

    def __init__(self) -> None:
        self._registered = _Registered()

    def show(self, stats: Mapping[str, Any], load: Load) -> None:
        """Follow TextStats and the load they amount to."""
        registered = self._registered
        registered.show_load(load)
        registered.show(TEXT_WAITING, stats["waiting"])
        registered.show(TEXT_READ, stats["read_s"])
        registered.follow(TEXT_ANSWERS, stats["answers"])
        registered.follow(TEXT_RESTARTS, stats["restarts"])


class VocoderMetrics:
    """VocoderStats over Ray's registry."""

    def __init__(self) -> None:
        self._registered = _Registered()

    def show(self, stats: Mapping[str, Any], load: Load) -> None:
        """Follow VocoderStats and the load they amount to."""
        registered = self._registered
        registered.show_load(load)
        registered.show(VOCODER_WAITING, stats["waiting"])
        registered.show(VOCODER_CALL, stats["call_s"])
        registered.follow(VOCODER_CALLS, stats["calls"])
        registered.follow(VOCODER_JOBS, stats["jobs"])


async def every_period(show: Callable[[], None], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Call `show` for as long as the replica lives."""
    while True:
        show()
        await sleep(PERIOD_S)


def _make(metric: Metric) -> Any:
    tags: Any = metric.tags  # Ray types them as a tuple of exactly one
    if metric.kind is Kind.HISTOGRAM:
        return ray_metrics.Histogram(
            metric.name, description=metric.description, boundaries=list(metric.buckets), tag_keys=tags
        )
    make = ray_metrics.Counter if metric.kind is Kind.COUNTER else ray_metrics.Gauge
    return make(metric.name, description=metric.description, tag_keys=tags)
