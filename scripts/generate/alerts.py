"""Alerts: the Prometheus alerts, as a table.

In:    metrics of serve/observability/metrics/definitions.py and of Ray
Out:   ALERTS; k8s/monitoring/runbook.md has a section for each
Never: a metric that is not exported (tests/unit/k8s/test_monitoring.py)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from scripts.generate.promql import gained, share
from serve.errors import ERROR_SPECS

LATE = 'ray_chattts_ttfa_seconds_bucket{le="2.5"}'
CUT = 'ray_chattts_requests_total{outcome="cut"}'
ALL = "ray_chattts_requests_total"
CAPACITY = ("overloaded", "deadline_unmeetable")
BY_PLAN = {"draining", "waking", "not_cached", "reader_stalled"}  # of 5xx, what a client or an operator has asked for
FAULTS = sorted({spec.code for spec in ERROR_SPECS.values() if 500 <= spec.status < 505} - BY_PLAN)
"""codes of replies for which the service is to blame"""


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


@dataclass(frozen=True, slots=True)
class Objective:
    """A share of requests that may go wrong in a month."""

    alert: str
    budget: float
    summary: str
    rate: Callable[[str], str]
    """a window -> the share that goes wrong in it"""
    pages: bool = True
    """False: a peak may do that, and tickets are enough"""

    def alerts(self) -> Iterator[Alert]:
        """Yields its alerts: the long window shows that it matters, the short one that it still goes on."""
        for burn, long, short, hold, severity in BURN_RATES:
            least = f"{burn:g} * {self.budget:g}"
            if burn * self.budget < 1:
                query = " and ".join(f"({self.rate(window)} > {least})" for window in (long, short))
                summary = f"{self.summary} in {long}, {burn:g} times what the goal allows"
                yield Alert(self.alert, query, hold, severity if self.pages else "ticket", summary)


# Of the SRE workbook: 14.4 uses up a month's error budget in two days, 6 in five, 1 in a month.
BURN_RATES = ((14.4, "1h", "5m", "2m", "page"), (6, "6h", "30m", "15m", "page"), (1, "3d", "6h", "1h", "ticket"))
OBJECTIVES = (
    Objective(
        "ChatTTSFirstAudioSlow",
        0.05,
        "Requests whose first audio is later than 2.5 s",
        lambda window: f"1 - {share(LATE, 'ray_chattts_ttfa_seconds_count', window)}",
    ),
    Objective("ChatTTSStreamsCut", 0.001, "Requests that fail after their first audio", lambda window: share(CUT, ALL, window)),
    Objective("ChatTTSFailing", 0.005, "Requests that fail by a fault of the service", lambda window: refused(FAULTS, window)),
    Objective(
        "ChatTTSRefusing",
        0.01,
        "Requests that are refused for lack of capacity",
        lambda window: refused(CAPACITY, window),
        pages=False,
    ),
)


def refused(codes: Sequence[str], window: str) -> str:
    """Returns the share of requests that are refused with one of these codes."""
    return share(f'ray_chattts_rejects_total{{code=~"{"|".join(codes)}"}}', ALL, window)


ALERTS: tuple[Alert, ...] = (
    *(alert for objective in OBJECTIVES for alert in objective.alerts()),
    Alert(
        "ChatTTSNoIngress",
        "absent(ray_chattts_in_flight)",
        "5m",
        "page",
        "No ingress replica reports: nobody is served, or nothing is measured",
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
        gained('ray_chattts_wasted_steps_total{reason="broken"}', "15m") + " > 0",
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
        gained("ray_chattts_text_restarts_total", "15m") + " > 3",
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
    Alert("ChatTTSJobsQueued", "max(ray_chattts_jobs_queued_seconds) > 1800", "10m", "ticket", "A job has waited half an hour"),
    Alert(
        "ChatTTSDiskFull",
        "max by (instance) (ray_node_disk_utilization_percentage) > 90",
        "10m",
        "ticket",
        "The disk of Ray's session and logs is nearly full on {{ $labels.instance }}",
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
        gained("ray_serve_deployment_replica_starts_total", "15m", by="deployment") + " > 5",
        "0m",
        "ticket",
        "Replicas of {{ $labels.deployment }} start again and again",
    ),
    Alert("ChatTTSWatchdog", "vector(1)", "0m", "none", "Alerts arrive: silence of this one is the alert"),
)
