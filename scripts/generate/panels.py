"""Panels: the graphs of the Grafana dashboard, as a table.

In:    metrics of serve/observability/metrics/definitions.py and of Ray
Out:   PANELS
Never: a metric that is not exported (tests/unit/k8s/test_monitoring.py)
"""

from dataclasses import dataclass

from scripts.generate.promql import quantile, share


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph of the dashboard."""

    title: str
    unit: str
    """unit by Grafana's name"""
    queries: dict[str, str]
    """legend -> PromQL"""
    description: str
    """how to read it"""


PANELS: tuple[Panel, ...] = (
    Panel(
        "First audio",
        "s",
        {f"p{round(100 * at)}": quantile(at, "ray_chattts_ttfa_seconds") for at in (0.5, 0.95, 0.99)},
        "From the request's arrival to its first audio. It is the first to grow when replicas are missing.",
    ),
    Panel(
        "Continuity",
        "percentunit",
        {"streams without a gap": share("ray_chattts_continuous_streams_total", "ray_chattts_streams_total", "5m")},
        "Streams in which a client would have waited less than 0.1 s in all. Below 1, the engine is slower than speech.",
    ),
    Panel(
        "Requests by outcome",
        "reqps",
        {"{{outcome}}": "sum by (outcome) (rate(ray_chattts_requests_total[1m]))"},
        "`cut` is a failure after the first audio; `left` is a client that disconnected.",
    ),
    Panel(
        "Refusals",
        "reqps",
        {"{{code}}": "sum by (code) (rate(ray_chattts_rejects_total[1m]))"},
        "By error code. `overloaded` is a lack of capacity; codes of 4xx replies are mistakes of clients.",
    ),
    Panel(
        "Audio generated",
        "none",
        {
            "sent, audio seconds per second": "sum(rate(ray_chattts_audio_seconds_total[1m]))",
            "generated, steps / 46.875": "sum(rate(ray_chattts_steps_total[1m])) / 46.875",
        },
        "What is sent and what the engines generate. The difference is wasted work and audio in progress.",
    ),
    Panel(
        "Real-time factor of requests",
        "none",
        {f"p{round(100 * at)}": quantile(at, "ray_chattts_rtf") for at in (0.5, 0.95)},
        "Seconds of work per second of audio. Above 1, clients wait.",
    ),
    Panel(
        "Engine: sequences",
        "none",
        {
            "decoding": "sum(ray_chattts_running_sequences)",
            "waiting": "sum(ray_chattts_waiting_sequences)",
            "slots": "sum(ray_chattts_slots)",
            "slots while all stay smooth": "sum(ray_chattts_usable_slots)",
        },
        "Waiting above zero for long: add replicas, or slots while a step stays below 21 ms.",
    ),
    Panel(
        "Engine: time per step",
        "s",
        {"{{replica}}": "max by (replica) (ray_chattts_step_seconds)", "speech": "vector(1 / 46.875)"},
        "Below the line, every slot keeps up with its client.",
    ),
    Panel(
        "Engine: wait for a slot",
        "s",
        {f"p{round(100 * at)} {{{{lane}}}}": quantile(at, "ray_chattts_queue_wait_seconds", "le, lane") for at in (0.5, 0.95)},
        "By lane. The part of the time to first audio that more slots or replicas would remove.",
    ),
    Panel(
        "Engine: preemptions",
        "none",
        {"per minute": "sum(60 * rate(ray_chattts_preempted_total[5m]))"},
        "Bulk sequences that lost their slot to an interactive one. Many all day long: add replicas.",
    ),
    Panel(
        "Engine: wasted steps",
        "none",
        {"{{reason}}": "sum by (reason) (rate(ray_chattts_wasted_steps_total[5m]))"},
        "`cancelled`: the client left. `deadline`, `stalled` and `broken` are failures of the service.",
    ),
    Panel(
        "Vocoder",
        "s",
        {"per call, {{replica}}": "max by (replica) (ray_chattts_vocoder_call_seconds)"},
        "Time per call of the network.",
    ),
    Panel(
        "Vocoder: work",
        "none",
        {
            "waiting": "sum(ray_chattts_vocoder_waiting)",
            "per second": "sum(rate(ray_chattts_vocoder_jobs_total[1m]))",
            "per call": share("ray_chattts_vocoder_jobs_total", "ray_chattts_vocoder_calls_total", "1m"),
        },
        "Waiting work is late audio.",
    ),
    Panel(
        "Text worker",
        "s",
        {
            "per answer, {{replica}}": "max by (replica) (ray_chattts_text_answer_seconds)",
            "answers per second": "sum(rate(ray_chattts_text_answers_total[1m]))",
            "waiting": "sum(ray_chattts_text_waiting)",
            "replaced per hour": "sum(increase(ray_chattts_text_restarts_total[1h]))",
        },
        "The process that reads texts. Waiting above zero: add a text replica. Replaced: it died or hung.",
    ),
    Panel(
        "Load and backlog",
        "none",
        {
            "{{deployment}}, replicas in use": "sum by (deployment) (ray_chattts_utilisation)",
            "{{deployment}}, seconds of waiting work": "max by (deployment) (ray_chattts_backlog_seconds)",
        },
        "What serve.resilience.autoscaling:StepBacklogPolicy scales by.",
    ),
    Panel(
        "Replicas",
        "none",
        {
            "{{deployment}}, healthy": "sum by (deployment) (ray_serve_deployment_replica_healthy)",
            "{{deployment}}, wanted": "max by (deployment) (ray_serve_autoscaling_target_replicas)",
        },
        "Healthy below wanted for long: a replica cannot start. Its log gives the reason.",
    ),
    Panel(
        "Waiting in Serve",
        "none",
        {"{{deployment}}": "sum by (deployment) (ray_serve_deployment_queued_queries)"},
        "Should stay at zero: requests wait in the engine, or are refused on admission.",
    ),
    Panel(
        "Text",
        "none",
        {
            "characters per second": "sum(rate(ray_chattts_characters_total[5m]))",
            "warnings per second, {{code}}": "sum by (code) (rate(ray_chattts_text_warnings_total[5m]))",
        },
        "Warnings count places in texts that could not be spoken as written.",
    ),
    Panel(
        "Conversations: interruptions",
        "none",
        {
            "interruptions per minute": "sum(60 * rate(ray_chattts_interruptions_total[5m]))",
            "unheard steps per second": "sum(rate(ray_chattts_unheard_steps_total[5m]))",
        },
        "Unheard steps were decoded and sent, and a listener interrupted before them. A smaller lead_s leaves fewer.",
    ),
    Panel(
        "Circuit breakers and retries",
        "none",
        {
            "{{stage}}, open": "max by (stage) (ray_chattts_breaker_open)",
            "{{stage}}, retries per second": "sum by (stage) (rate(ray_chattts_retries_total[5m]))",
            "requests in quarantine": "sum(ray_chattts_quarantined)",
        },
        "An open breaker means that a stage fails for every client. Retries are deaths of replicas that no client noticed.",
    ),
    Panel(
        "Fail-overs in mid-stream",
        "none",
        {
            "segments per minute": "sum(60 * rate(ray_chattts_fail_overs_total[5m]))",
            "resumed replies per minute": "sum(60 * rate(ray_chattts_resumed_replies_total[5m]))",
            "repeated steps per second": "sum(rate(ray_chattts_repeated_steps_total[5m]))",
            "seconds to the next step, p95": quantile(0.95, "ray_chattts_fail_over_seconds"),
        },
        "A replica died while somebody listened, and another one went on. Listeners hear only what exceeds their lead. "
        "A reply is resumed by a client whose connection was lost.",
    ),
    Panel(
        "Quotas not shared",
        "none",
        {"{{replica}}": "max by (replica) (ray_chattts_quotas_unshared)"},
        "1: this ingress replica cannot reach the Redis of the keys, and allows its share of every quota until it can.",
    ),
    Panel(
        "Store not writable",
        "none",
        {"{{replica}}": "max by (replica) (ray_chattts_store_unwritable)"},
        "1: the store refuses this ingress replica's writes (read only, full) or does not answer. Speech goes on.",
    ),
    Panel(
        "Jobs that wait for disk",
        "none",
        {"{{replica}}": "max by (replica) (ray_chattts_jobs_waiting_for_disk)"},
        "Jobs of this ingress replica that cannot keep what is spoken. They go on by themselves once there is space.",
    ),
    Panel("Jobs that wait for a replica", "s", {"oldest": "max(ray_chattts_jobs_queued_seconds)"}, "Age of the oldest one."),
    Panel(
        "Cache of steps",
        "none",
        {
            "{{tier}}, {{result}}, per second": "sum by (tier, result) (rate(ray_chattts_cache_lookups_total[5m]))",
            "evictions per second": "sum(rate(ray_chattts_cache_evictions_total[5m]))",
            "share of steps from the cache": "sum(rate(ray_chattts_cached_steps_total[5m]))"
            " / (sum(rate(ray_chattts_steps_total[5m])) + sum(rate(ray_chattts_cached_steps_total[5m])) > 0)",
        },
        "Segments by the source of their steps. Many evictions and few hits: raise `cache.memory_mib`. Errors: Redis is away.",
    ),
    Panel(
        "Degradation under load",
        "none",
        {
            "active steps, {{replica}}": "max by (replica) (ray_chattts_degradation_level)",
            "{{step}}": "max by (step) (ray_chattts_degradation_step)",
        },
        "Above zero for hours: the service is too small; this is no peak.",
    ),
    Panel(
        "Versions",
        "percentunit",
        {
            "share of {{version}}": "avg by (version) (ray_chattts_version_share)",
            "{{version}} is out of service": "max by (version) (ray_chattts_version_out_of_service)",
            "kinds of replicas of {{version}}": "max by (version) (ray_chattts_replica_kinds)",
            "failed requests of {{version}}": "sum by (version) (ray_chattts_version_failed)"
            " / (sum by (version) (ray_chattts_version_requests) > 0)",
            "roll-backs of {{version}} per hour": "sum by (version) (increase(ray_chattts_rollbacks_total[1h]))",
        },
        "A version out of service lost its share because of errors, latency or its probes; `/health` gives the reason. More "
        "than one kind of replicas: the same request may have other bytes on each.",
    ),
    Panel(
        "Memory",
        "bytes",
        {
            "KV cache": "sum(ray_chattts_kv_bytes)",
            "cache of steps": "sum(ray_chattts_cache_bytes)",
            "audio for slow readers": "sum(ray_chattts_unread_bytes)",
        },
        "The KV cache is allocated once. A change means that a replica started or ended. Audio waits for slow readers up to "
        "limits.max_unread_bytes per ingress replica.",
    ),
    Panel(
        "Ingress",
        "none",
        {
            "requests in progress": "sum(ray_chattts_in_flight)",
            "event loop, p99 [ms]": quantile(0.99, "ray_serve_event_loop_scheduling_latency_ms"),
        },
        "A late event loop means a full CPU: add ingress replicas.",
    ),
    Panel(
        "Segments",
        "none",
        {"per second": "sum(rate(ray_chattts_segments_total[1m]))"},
        "Segments decoded to their own end.",
    ),
)
