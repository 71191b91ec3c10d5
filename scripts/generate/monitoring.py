"""Monitoring: one list of panels and one of alerts become the Grafana board, the Prometheus rules and the runbook's index.

In:    PANELS, ALERTS; the names of serve/observability/metrics.py
Out:   k8s/monitoring/dashboard.json, rules.yaml, prometheusrule.yaml. `python -m scripts.generate.monitoring` writes them
Owns:  those files; nobody edits them
Never: a metric that serve/observability/metrics.py or Ray does not export (tests/unit/k8s/test_monitoring.py)
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "k8s" / "monitoring"
RUNBOOK = "k8s/monitoring/runbook.md"

# Of Ray's own metrics, those a panel or an alert looks at.
RAY_METRICS = frozenset(
    {
        "ray_serve_autoscaling_target_replicas",
        "ray_serve_deployment_queued_queries",
        "ray_serve_deployment_replica_healthy",
        "ray_serve_deployment_replica_starts_total",
        "ray_serve_event_loop_scheduling_latency_ms_bucket",
    }
)

COLUMNS, ROWS = 12, 8  # a panel on Grafana's grid of 24 columns


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph."""

    title: str
    unit: str
    """Grafana's name of it"""
    queries: dict[str, str]
    """legend -> PromQL"""
    says: str
    """what to read from it"""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    query: str
    hold: str
    """how long it must be true"""
    severity: str
    summary: str
    labels: dict[str, str] = field(default_factory=dict)


def quantile(share: float, metric: str, by: str = "le") -> str:
    """A quantile over five minutes of a histogram, all replicas together."""
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket[5m])))"


def share(part: str, whole: str, window: str) -> str:
    """How much of one counter another one is. No traffic is no answer, not a division by zero."""
    return f"sum(rate({part}[{window}])) / (sum(rate({whole}[{window}])) > 0)"


LATE = 'ray_chattts_ttfa_seconds_bucket{le="2.5"}'
CUT = 'ray_chattts_requests_total{outcome="cut"}'
REFUSED_BY_US = 'ray_chattts_rejects_total{code=~"overloaded|deadline_unmeetable|engine_dead"}'

PANELS: tuple[Panel, ...] = (
    Panel(
        "First audio",
        "s",
        {f"p{round(100 * at)}": quantile(at, "ray_chattts_ttfa_seconds") for at in (0.5, 0.95, 0.99)},
        "From the request's arrival to its first audio. It grows first when replicas are short.",
    ),
    Panel(
        "Continuity",
        "percentunit",
        {"streams without a gap": share("ray_chattts_continuity_ok_total", "ray_chattts_streams_total", "5m")},
        "Streams whose listener waited less than 0.1 s in all. Below 1 the engine is slower than speech.",
    ),
    Panel(
        "Requests by how they end",
        "reqps",
        {"{{outcome}}": "sum by (outcome) (rate(ray_chattts_requests_total[1m]))"},
        "`cut` is a failure after the first audio; `left` is a client that hung up.",
    ),
    Panel(
        "Refusals",
        "reqps",
        {"{{code}}": "sum by (code) (rate(ray_chattts_rejects_total[1m]))"},
        "By error code. `overloaded` is capacity; codes of the 4xx kind are clients' mistakes.",
    ),
    Panel(
        "Audio made",
        "none",
        {
            "audio seconds a second": "sum(rate(ray_chattts_audio_seconds_total[1m]))",
            "steps / 46.875": "sum(rate(ray_chattts_steps_total[1m])) / 46.875",
        },
        "What is sent, and what the engines make; the gap is work for nobody and audio under way.",
    ),
    Panel(
        "Real-time factor of requests",
        "none",
        {f"p{round(100 * at)}": quantile(at, "ray_chattts_rtf") for at in (0.5, 0.95)},
        "Seconds of work a second of audio. Above 1 listeners wait.",
    ),
    Panel(
        "Engine: sequences",
        "none",
        {
            "decoding": "sum(ray_chattts_batch_rows)",
            "waiting": "sum(ray_chattts_waiting_rows)",
            "slots": "sum(ray_chattts_slots)",
        },
        "Waiting above zero for long: add replicas, or slots while a step stays below 21 ms.",
    ),
    Panel(
        "Engine: a step",
        "s",
        {"{{replica}}": "max by (replica) (ray_chattts_step_seconds)", "speech": "vector(1 / 46.875)"},
        "Below the line every slot keeps up with its listener.",
    ),
    Panel(
        "Engine: wait for a slot",
        "s",
        {f"p{round(100 * at)} {{{{lane}}}}": quantile(at, "ray_chattts_queue_wait_seconds", "le, lane") for at in (0.5, 0.95)},
        "By lane: the part of first audio that more slots or replicas would remove.",
    ),
    Panel(
        "Engine: bulk interrupted",
        "none",
        {"a minute": "sum(60 * rate(ray_chattts_parked_total[5m]))"},
        "Bulk sequences that gave up their slot to an interactive one. Much of it all day long: add replicas.",
    ),
    Panel(
        "Engine: steps for nobody",
        "none",
        {"{{reason}}": "sum by (reason) (rate(ray_chattts_wasted_steps_total[5m]))"},
        "`cancelled` is clients that leave; `deadline`, `stalled` and `broken` are ours.",
    ),
    Panel(
        "Vocoder",
        "s",
        {"a call, {{replica}}": "max by (replica) (ray_chattts_vocoder_call_seconds)"},
        "Time of one call of the network.",
    ),
    Panel(
        "Vocoder: work",
        "none",
        {
            "waiting": "sum(ray_chattts_vocoder_waiting)",
            "a second": "sum(rate(ray_chattts_vocoder_jobs_total[1m]))",
            "in one call": share("ray_chattts_vocoder_jobs_total", "ray_chattts_vocoder_calls_total", "1m"),
        },
        "Work that waits is audio that is late.",
    ),
    Panel(
        "Text worker",
        "s",
        {
            "an answer, {{replica}}": "max by (replica) (ray_chattts_text_read_seconds)",
            "answers a second": "sum(rate(ray_chattts_text_answers_total[1m]))",
            "waiting": "sum(ray_chattts_text_waiting)",
            "replaced, an hour": "sum(increase(ray_chattts_text_restarts_total[1h]))",
        },
        "The process that reads texts. Waiting above zero: a text replica more. Replaced: it was killed, or hung.",
    ),
    Panel(
        "Work ahead",
        "none",
        {
            "{{deployment}}, busy": "sum by (deployment) (ray_chattts_busy)",
            "{{deployment}}, seconds waiting": "max by (deployment) (ray_chattts_backlog_seconds)",
        },
        "What serve.resilience.autoscaling:StepBacklogPolicy scales by: replicas' worth of work, and what waits.",
    ),
    Panel(
        "Replicas",
        "none",
        {
            "{{deployment}}, healthy": "sum by (deployment) (ray_serve_deployment_replica_healthy)",
            "{{deployment}}, wanted": "max by (deployment) (ray_serve_autoscaling_target_replicas)",
        },
        "Healthy below wanted for long: a replica cannot start; its log says why.",
    ),
    Panel(
        "Waiting in Serve",
        "none",
        {"{{deployment}}": "sum by (deployment) (ray_serve_deployment_queued_queries)"},
        "Should stay at zero: requests wait in the engine, or are refused at the door.",
    ),
    Panel(
        "Text",
        "none",
        {
            "characters a second": "sum(rate(ray_chattts_characters_total[5m]))",
            "warnings a second, {{code}}": "sum by (code) (rate(ray_chattts_text_warnings_total[5m]))",
        },
        "Warnings count places that could not be spoken as written.",
    ),
    Panel(
        "Breakers and second tries",
        "none",
        {
            "{{stage}}, open": "max by (stage) (ray_chattts_breaker_open)",
            "{{stage}}, tried again a second": "sum by (stage) (rate(ray_chattts_retries_total[5m]))",
            "requests in quarantine": "sum(ray_chattts_quarantined)",
        },
        "An open breaker is a stage that fails whoever asks; second tries are replicas that died and nobody heard it.",
    ),
    Panel(
        "Quotas counted alone",
        "none",
        {"{{replica}}": "max by (replica) (ray_chattts_quotas_alone)"},
        "1: the Redis of the keys is away for this ingress replica; it allows its share of every quota until it is back.",
    ),
    Panel(
        "Cache of steps",
        "none",
        {
            "{{tier}}, {{result}}, a second": "sum by (tier, result) (rate(ray_chattts_cache_total[5m]))",
            "evictions a second": "sum(rate(ray_chattts_cache_evictions_total[5m]))",
            "engines spared": "sum(rate(ray_chattts_cached_steps_total[5m]))"
            " / (sum(rate(ray_chattts_steps_total[5m])) + sum(rate(ray_chattts_cached_steps_total[5m])) > 0)",
        },
        "Segments by where their steps came from. Many evictions, few hits: raise `cache.memory_mib`. Errors: Redis is away.",
    ),
    Panel(
        "Given up under load",
        "none",
        {"rungs in force, {{replica}}": "max by (replica) (ray_chattts_degrade_level)"},
        "The degrade ladder; `/health` names the rungs. Above zero for hours: it is too small a house, not a peak.",
    ),
    Panel(
        "Versions",
        "percentunit",
        {
            "share of {{version}}": "avg by (version) (ray_chattts_version_share)",
            "{{version}} is out": "max by (version) (ray_chattts_version_out)",
            "failed of {{version}}": "sum by (version) (ray_chattts_version_failed)"
            " / (sum by (version) (ray_chattts_version_requests) > 0)",
            "{{version}} rolled back, an hour": "sum by (version) (increase(ray_chattts_roll_backs_total[1h]))",
        },
        "Who speaks. A version that is out has lost its share to errors, to latency or to its probes; `/health` says which.",
    ),
    Panel(
        "Shadow runs",
        "none",
        {
            "{{version}}, {{result}} a second": "sum by (version, result) (rate(ray_chattts_shadow_total[5m]))",
            "length over the real one, p50": quantile(0.5, "ray_chattts_shadow_duration_ratio"),
            "difference in loudness, p95 [dB]": quantile(0.95, "ray_chattts_shadow_loudness_db"),
        },
        "A version nobody hears yet beside the one everybody hears: it should be as long and as loud.",
    ),
    Panel(
        "Memory",
        "bytes",
        {"KV cache": "sum(ray_chattts_kv_bytes)", "cache of steps": "sum(ray_chattts_cache_bytes)"},
        "The KV cache is allocated once; a change is a replica that came or went.",
    ),
    Panel(
        "Ingress",
        "none",
        {
            "requests inside": "sum(ray_chattts_in_flight)",
            "event loop, p99 [ms]": quantile(0.99, "ray_serve_event_loop_scheduling_latency_ms"),
        },
        "An event loop that is late is a CPU that is full: more ingress replicas.",
    ),
    Panel(
        "Segments",
        "none",
        {"a second": "sum(rate(ray_chattts_segments_total[1m]))"},
        "Pieces of text that were spoken to their own end.",
    ),
)

# Burn rates after the SRE workbook: 14.4 uses a month's error budget in two days, 6 in five. The long window says that it
# matters, the short one that it still goes on.
ALERTS: tuple[Alert, ...] = (
    Alert(
        "ChatTTSFirstAudioSlow",
        f"(1 - {share(LATE, 'ray_chattts_ttfa_seconds_count', '1h')} > 14.4 * 0.05)"
        f" and (1 - {share(LATE, 'ray_chattts_ttfa_seconds_count', '5m')} > 14.4 * 0.05)",
        "2m",
        "page",
        "More than 72 % of requests hear their first audio later than 2.5 s (the goal: 95 % earlier)",
    ),
    Alert(
        "ChatTTSStreamsCut",
        f"({share(CUT, 'ray_chattts_requests_total', '1h')} > 14.4 * 0.001)"
        f" and ({share(CUT, 'ray_chattts_requests_total', '5m')} > 14.4 * 0.001)",
        "2m",
        "page",
        "More than 1.4 % of requests fail after their first audio (the goal: 0.1 %)",
    ),
    Alert(
        "ChatTTSRefusing",
        f"({share(REFUSED_BY_US, 'ray_chattts_requests_total', '1h')} > 6 * 0.01)"
        f" and ({share(REFUSED_BY_US, 'ray_chattts_requests_total', '5m')} > 6 * 0.01)",
        "5m",
        "ticket",
        "More than 6 % of requests are refused for want of capacity (the goal: 1 %)",
    ),
    Alert(
        "ChatTTSStutters",
        f"{share('ray_chattts_continuity_ok_total', 'ray_chattts_streams_total', '15m')} < 0.99",
        "5m",
        "ticket",
        "More than 1 % of streams have a gap that is heard",
    ),
    Alert(
        "ChatTTSEngineSilent",
        "sum(ray_chattts_batch_rows) > 0 and sum(rate(ray_chattts_steps_total[2m])) == 0",
        "2m",
        "page",
        "Sequences hold slots and no step is made",
    ),
    Alert(
        "ChatTTSNoEngine",
        "absent(ray_chattts_slots)",
        "5m",
        "page",
        "No acoustic replica reports",
    ),
    Alert(
        "ChatTTSWaiting",
        "sum(ray_chattts_waiting_rows) > 0.5 * sum(ray_chattts_slots)",
        "10m",
        "ticket",
        "Half as many sequences wait as there are slots, for ten minutes",
    ),
    Alert(
        "ChatTTSBrokenNumbers",
        'sum(increase(ray_chattts_wasted_steps_total{reason="broken"}[15m])) > 0',
        "0m",
        "ticket",
        "The model has produced numbers that are not finite",
    ),
    Alert(
        "ChatTTSBreakerOpen",
        "max(max_over_time(ray_chattts_breaker_open[1m])) > 0",
        "2m",
        "page",
        "A stage fails whoever asks, and requests are refused at once",
    ),
    Alert(
        "ChatTTSTextWorkerDies",
        "sum(increase(ray_chattts_text_restarts_total[15m])) > 3",
        "0m",
        "ticket",
        "The process that reads texts dies or hangs again and again",
    ),
    Alert(
        "ChatTTSQuarantine",
        "sum(ray_chattts_quarantined) > 0",
        "0m",
        "ticket",
        "A request has ended two replicas and is kept from a third",
    ),
    Alert(
        "ChatTTSQuotasAlone",
        "max(ray_chattts_quotas_alone) > 0",
        "2m",
        "ticket",
        "The Redis of the keys has been away for two minutes: replicas count quotas alone",
    ),
    Alert(
        "ChatTTSVersionOut",
        "max(max_over_time(ray_chattts_version_out[5m])) > 0",
        "0m",
        "ticket",
        "A version of the model has lost its share of requests",
    ),
    Alert(
        "ChatTTSReplicasRestart",
        "sum by (deployment) (increase(ray_serve_deployment_replica_starts_total[15m])) > 5",
        "0m",
        "ticket",
        "Replicas of {{ $labels.deployment }} start again and again",
    ),
)


def dashboard() -> dict[str, Any]:
    """Grafana's JSON model."""
    panels = []
    for index, panel in enumerate(PANELS):
        panels.append(
            {
                "id": index + 1,
                "type": "timeseries",
                "title": panel.title,
                "description": panel.says,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"w": COLUMNS, "h": ROWS, "x": COLUMNS * (index % 2), "y": ROWS * (index // 2)},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend}
                    for at, (legend, query) in enumerate(panel.queries.items())
                ],
            }
        )
    return {
        "uid": "chattts",
        "title": "ChatTTS",
        "tags": ["chattts"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]},
        "panels": panels,
    }


def rules() -> dict[str, Any]:
    """A Prometheus rule file."""
    return {
        "groups": [
            {
                "name": "chattts",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.query,
                        "for": alert.hold,
                        "labels": {"severity": alert.severity, **alert.labels},
                        "annotations": {"summary": alert.summary, "runbook": f"{RUNBOOK}#{alert.name.lower()}"},
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }


def prometheus_rule() -> dict[str, Any]:
    """The same rules for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "chattts", "labels": {"app.kubernetes.io/part-of": "chattts"}},
        "spec": rules(),
    }


def files() -> dict[Path, str]:
    """What is generated: path -> text."""
    head = "# Written by `python -m scripts.generate.monitoring`: edit that file.\n"
    return {
        FOLDER / "dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
        FOLDER / "rules.yaml": head + yaml.safe_dump(rules(), sort_keys=False, width=1000),
        FOLDER / "prometheusrule.yaml": head + yaml.safe_dump(prometheus_rule(), sort_keys=False, width=1000),
    }


def main() -> int:
    """Write them all."""
    argparse.ArgumentParser(description="Write the Grafana board and the Prometheus rules.").parse_args()
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        Console().print(str(path.relative_to(ROOT)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
