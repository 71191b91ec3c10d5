"""Alerts: the Prometheus alerts, as a table.

In:    metrics of serve/observability/metrics/definitions.py and of Ray
Out:   ALERTS; k8s/monitoring/runbook.md has a section for each
Never: a metric that is not exported (tests/unit/k8s/test_monitoring.py)
"""

from dataclasses import dataclass, field

from scripts.generate.promql import share

LATE = 'ray_chattts_ttfa_seconds_bucket{le="2.5"}'
CUT = 'ray_chattts_requests_total{outcome="cut"}'
REFUSED_BY_US = 'ray_chattts_rejects_total{code=~"overloaded|deadline_unmeetable|engine_dead"}'


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert."""

    name: str
    query: str
    hold: str
    """how long the query must be true"""
    severity: str
    summary: str
    labels: dict[str, str] = field(default_factory=dict)


# Burn rates of the SRE workbook: 14.4 uses up a month's error budget in two days, 6 in five. The long window shows that it
# matters, the short one that it still goes on.
ALERTS: tuple[Alert, ...] = (
    Alert(
        "ChatTTSFirstAudioSlow",
        f"(1 - {share(LATE, 'ray_chattts_ttfa_seconds_count', '1h')} > 14.4 * 0.05)"
        f" and (1 - {share(LATE, 'ray_chattts_ttfa_seconds_count', '5m')} > 14.4 * 0.05)",
        "2m",
        "page",
        "More than 72 % of requests get their first audio later than 2.5 s (the goal: 95 % earlier)",
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
        "More than 6 % of requests are refused for lack of capacity (the goal: 1 %)",
    ),
    Alert(
        "ChatTTSStutters",
        f"{share('ray_chattts_continuous_streams_total', 'ray_chattts_streams_total', '15m')} < 0.99",
        "5m",
        "ticket",
        "More than 1 % of streams have an audible gap",
    ),
    Alert(
        "ChatTTSEngineSilent",
        "sum(ray_chattts_running_sequences) > 0 and sum(rate(ray_chattts_steps_total[2m])) == 0",
        "2m",
        "page",
        "Sequences hold slots and no step is decoded",
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
        "sum(ray_chattts_waiting_sequences) > 0.5 * sum(ray_chattts_slots)",
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
        "A stage fails for every client, and requests are refused at once",
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
        "A request ended two replicas and is refused",
    ),
    Alert(
        "ChatTTSQuotasUnshared",
        "max(ray_chattts_quotas_unshared) > 0",
        "2m",
        "ticket",
        "The Redis of the keys has been away for two minutes: every replica counts quotas alone",
    ),
    Alert(
        "ChatTTSStoreUnwritable",
        "max(ray_chattts_store_unwritable) > 0",
        "2m",
        "page",
        "The store takes no writes: no job, voice, lexicon or key can be made, and no job ends",
    ),
    Alert(
        "ChatTTSJobsWithoutDisk",
        "sum(ray_chattts_jobs_waiting_for_disk) > 0",
        "2m",
        "ticket",
        "Jobs cannot go on: the disk of jobs.folder is full",
    ),
    Alert(
        "ChatTTSVersionOut",
        "max(max_over_time(ray_chattts_version_out_of_service[5m])) > 0",
        "0m",
        "ticket",
        "A version of the model has lost its share of requests",
    ),
    Alert(
        "ChatTTSReplicasDiffer",
        "max(ray_chattts_replica_kinds) > 1",
        "15m",
        "ticket",
        "Replicas of one version would make different bytes of the same request",
    ),
    Alert(
        "ChatTTSReplicasRestart",
        "sum by (deployment) (increase(ray_serve_deployment_replica_starts_total[15m])) > 5",
        "0m",
        "ticket",
        "Replicas of {{ $labels.deployment }} start again and again",
    ),
)
