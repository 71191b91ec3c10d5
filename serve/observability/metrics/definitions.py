"""Metric definitions: the complete list, with names, units, tags and buckets.

Out:   METRICS
Owns:  the names; Ray's exporter puts `ray_` before each, Serve adds the tags deployment, replica and application
Never: Ray; a client's text, ids or keys as tags

The dashboard and the alerts (scripts/generate) use no other metric of this service.
"""

from dataclasses import dataclass
from enum import StrEnum

from serve.observability.reply_stats import CONTINUOUS_S


class MetricType(StrEnum):
    """The metric types of Prometheus that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """Name, type, meaning, tags and buckets of one metric."""

    type: MetricType
    name: str
    """without the prefix `ray_`; the suffix is the unit"""
    description: str
    tags: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """The name in Prometheus."""
        return f"ray_{self.name}"


# Buckets lie close around the goals: first audio within 0.15 s on a GPU and 2.5 s on two CPU cores, a real-time factor below 1.
FIRST_AUDIO_BUCKETS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0, 6.0, 10.0, 15.0, 30.0)
RTF_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0)
STALL_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAIT_BUCKETS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

FIRST_AUDIO = Metric(
    MetricType.HISTOGRAM,
    "chattts_ttfa_seconds",
    "time from the arrival of a request to its first audio",
    ("streamed",),
    FIRST_AUDIO_BUCKETS,
)
RTF = Metric(
    MetricType.HISTOGRAM,
    "chattts_rtf",
    "real-time factor of whole requests, seconds of work per second of audio",
    (),
    RTF_BUCKETS,
)
UNDERRUN = Metric(
    MetricType.HISTOGRAM,
    "chattts_underrun_seconds",
    "time a client that plays at once would have waited inside a stream",
    (),
    STALL_BUCKETS,
)
STREAMS = Metric(MetricType.COUNTER, "chattts_streams_total", "streams delivered to their end")
CONTINUOUS = Metric(
    MetricType.COUNTER,
    "chattts_continuous_streams_total",
    f"streams in which that client would have waited less than {CONTINUOUS_S:g} s in all",
)
REQUESTS = Metric(MetricType.COUNTER, "chattts_requests_total", "requests by outcome", ("outcome",))
REJECTS = Metric(MetricType.COUNTER, "chattts_rejects_total", "requests refused or cut, by error code", ("code",))
IN_FLIGHT = Metric(MetricType.GAUGE, "chattts_in_flight", "requests in progress per ingress replica")
UNREAD = Metric(MetricType.GAUGE, "chattts_unread_bytes", "audio that was generated ahead of clients that read slowly")
AUDIO = Metric(MetricType.COUNTER, "chattts_audio_seconds_total", "seconds of audio sent")
CHARACTERS = Metric(MetricType.COUNTER, "chattts_characters_total", "characters of completed requests")
INTERRUPTIONS = Metric(MetricType.COUNTER, "chattts_interruptions_total", "contexts of conversations that were cancelled")
UNHEARD = Metric(
    MetricType.COUNTER,
    "chattts_unheard_steps_total",
    "decoded steps whose audio was sent and not heard, because a listener interrupted",
)
TEXT_WARNINGS = Metric(
    MetricType.COUNTER,
    "chattts_text_warnings_total",
    "places in texts that cannot be synthesised as written, by code",
    ("code",),
)
BREAKER = Metric(
    MetricType.GAUGE, "chattts_breaker_open", "circuit breaker of a stage: 0 closed, 0.5 half open, 1 open", ("stage",)
)
RETRIES = Metric(
    MetricType.COUNTER, "chattts_retries_total", "calls of a stage that were retried because a replica died", ("stage",)
)
FAIL_OVERS = Metric(
    MetricType.COUNTER, "chattts_fail_overs_total", "segments that another replica went on with, because theirs died"
)
RESUMED = Metric(MetricType.COUNTER, "chattts_resumed_replies_total", "replies that went on where a client had lost one")
REPEATED_STEPS = Metric(
    MetricType.COUNTER, "chattts_repeated_steps_total", "steps that were generated a second time to go on with a segment"
)
INTERRUPTED = Metric(
    MetricType.HISTOGRAM,
    "chattts_fail_over_seconds",
    "time in a reply from the deaths of replicas to the next new steps",
    (),
    WAIT_BUCKETS,
)
QUARANTINED = Metric(MetricType.GAUGE, "chattts_quarantined", "requests that are refused now because they ended replicas")
QUOTAS_UNSHARED = Metric(
    MetricType.GAUGE,
    "chattts_quotas_unshared",
    "1: Redis is away, and this replica counts quotas alone, with its share of each",
)
STORE_UNWRITABLE = Metric(
    MetricType.GAUGE, "chattts_store_unwritable", "1: the store of voices, keys and jobs takes no writes, or does not answer"
)
JOBS_WITHOUT_DISK = Metric(
    MetricType.GAUGE, "chattts_jobs_waiting_for_disk", "jobs that cannot go on because the disk of jobs.folder is full"
)
JOBS_QUEUED = Metric(MetricType.GAUGE, "chattts_jobs_queued_seconds", "age of the oldest job that waits for a replica")
CACHE = Metric(
    MetricType.COUNTER, "chattts_cache_lookups_total", "segments looked up in the cache, by tier and result", ("tier", "result")
)
CACHED_STEPS = Metric(MetricType.COUNTER, "chattts_cached_steps_total", "steps delivered from the cache instead of the model")
CACHE_BYTES = Metric(MetricType.GAUGE, "chattts_cache_bytes", "size of the sampled steps kept in memory")
CACHE_EVICTIONS = Metric(MetricType.COUNTER, "chattts_cache_evictions_total", "segments evicted from memory")
DEGRADATION_LEVEL = Metric(MetricType.GAUGE, "chattts_degradation_level", "number of active degradation steps")
DEGRADATION_STEP = Metric(MetricType.GAUGE, "chattts_degradation_step", "1: this degradation step is active", ("step",))
VERSION_REQUESTS = Metric(
    MetricType.GAUGE, "chattts_version_requests", "recent requests of a version, as its roll-back counts them", ("version",)
)
VERSION_FAILED = Metric(MetricType.GAUGE, "chattts_version_failed", "failed ones among them", ("version",))
VERSION_SHARE = Metric(MetricType.GAUGE, "chattts_version_share", "share of the requests for the version's name", ("version",))
REPLICA_KINDS = Metric(
    MetricType.GAUGE,
    "chattts_replica_kinds",
    "kinds of replicas that a stage of a version has, by their fingerprints; 1: all would make the same bytes",
    ("version",),
)
VERSION_OUT = Metric(MetricType.GAUGE, "chattts_version_out_of_service", "1: rolled back, or its probes fail", ("version",))
ROLLBACKS = Metric(MetricType.COUNTER, "chattts_rollbacks_total", "roll-backs of a version", ("version",))

SLOTS = Metric(MetricType.GAUGE, "chattts_slots", "sequences the engine can decode together")
USABLE = Metric(
    MetricType.GAUGE, "chattts_usable_slots", "slots that may be taken while every stream stays smooth (engine.max_rtf)"
)
RUNNING = Metric(MetricType.GAUGE, "chattts_running_sequences", "sequences the engine decodes now")
WAITING = Metric(MetricType.GAUGE, "chattts_waiting_sequences", "sequences that wait for a slot")
STEP = Metric(MetricType.GAUGE, "chattts_step_seconds", "running mean of the time per decode step")
STEPS = Metric(MetricType.COUNTER, "chattts_steps_total", "decoded steps; 46.875 are one second of audio")
SEGMENTS = Metric(MetricType.COUNTER, "chattts_segments_total", "segments decoded to their own end")
QUEUE_WAIT = Metric(
    MetricType.HISTOGRAM, "chattts_queue_wait_seconds", "time from submission to a slot", ("lane",), WAIT_BUCKETS
)
PREEMPTED = Metric(MetricType.COUNTER, "chattts_preempted_total", "bulk sequences preempted by interactive ones")
WASTED = Metric(
    MetricType.COUNTER, "chattts_wasted_steps_total", "decoded steps that no client received, by reason", ("reason",)
)
KV_CACHE = Metric(MetricType.GAUGE, "chattts_kv_bytes", "size of the KV cache")

UTILISATION = Metric(MetricType.GAUGE, "chattts_utilisation", "share of a replica's capacity in use: text, engine or vocoder")
BACKLOG = Metric(MetricType.GAUGE, "chattts_backlog_seconds", "time a replica would need for its waiting work")

TEXT_WAITING = Metric(MetricType.GAUGE, "chattts_text_waiting", "texts that wait for the text worker")
TEXT_ANSWER = Metric(MetricType.GAUGE, "chattts_text_answer_seconds", "mean time of the text worker's latest answers")
TEXT_ANSWERS = Metric(MetricType.COUNTER, "chattts_text_answers_total", "answers of the text worker, health checks included")
TEXT_RESTARTS = Metric(MetricType.COUNTER, "chattts_text_restarts_total", "text workers that died or hung and were replaced")

VOCODER_WAITING = Metric(MetricType.GAUGE, "chattts_vocoder_waiting", "calls that wait for the vocoder")
VOCODER_CALL = Metric(MetricType.GAUGE, "chattts_vocoder_call_seconds", "mean time of the vocoder's latest calls")
VOCODER_CALLS = Metric(MetricType.COUNTER, "chattts_vocoder_calls_total", "calls of the vocoder's network")
VOCODER_JOBS = Metric(MetricType.COUNTER, "chattts_vocoder_jobs_total", "decoded windows or runs of steps")

METRICS: tuple[Metric, ...] = (
    FIRST_AUDIO, RTF, UNDERRUN, STREAMS, CONTINUOUS, REQUESTS, REJECTS, IN_FLIGHT, UNREAD, AUDIO, CHARACTERS, TEXT_WARNINGS,
    INTERRUPTIONS, UNHEARD,
    BREAKER, RETRIES, RESUMED, FAIL_OVERS, REPEATED_STEPS, INTERRUPTED, QUARANTINED, QUOTAS_UNSHARED, STORE_UNWRITABLE,
    JOBS_WITHOUT_DISK, JOBS_QUEUED,
    CACHE, CACHED_STEPS, CACHE_BYTES, CACHE_EVICTIONS,
    DEGRADATION_LEVEL, DEGRADATION_STEP,
    VERSION_REQUESTS, VERSION_FAILED, VERSION_SHARE, VERSION_OUT, REPLICA_KINDS,
    ROLLBACKS,
    SLOTS, USABLE, RUNNING, WAITING, STEP, STEPS, SEGMENTS, QUEUE_WAIT, PREEMPTED, WASTED, KV_CACHE,
    UTILISATION, BACKLOG, TEXT_WAITING, TEXT_ANSWER, TEXT_ANSWERS, TEXT_RESTARTS,
    VOCODER_WAITING, VOCODER_CALL, VOCODER_CALLS, VOCODER_JOBS,
)  # fmt: skip
