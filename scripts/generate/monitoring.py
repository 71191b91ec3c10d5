"""Monitoring: turns the tables of panels and alerts into the dashboard, the rules, and what Prometheus keeps of a scrape.

In:    panels.py, alerts.py
Out:   k8s/monitoring/dashboard.json, rules.yaml, prometheusrule.yaml, the runbook's table of goals; what podmonitor.yaml
       and container/prometheus.yaml keep; written by `python -m scripts.generate`
Owns:  those files
Never: a metric that is not exported (tests/unit/k8s/test_monitoring.py)
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from scripts.bench.summary import with_sections
from scripts.generate.alerts import ALERTS, OBJECTIVES, Alert
from scripts.generate.panels import PANELS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "k8s" / "monitoring"
RUNBOOK = "k8s/monitoring/runbook.md"
SITE = "https://docs.example.com"  # yours: where what `make site` writes is published

# Of Ray's own metrics, those a panel or an alert looks at.
RAY_METRICS = frozenset(
    {
        "ray_node_disk_utilization_percentage",
        "ray_serve_autoscaling_target_replicas",
        "ray_serve_deployment_queued_queries",
        "ray_serve_deployment_replica_healthy",
        "ray_serve_deployment_replica_starts_total",
        "ray_serve_event_loop_scheduling_latency_ms_bucket",
    }
)

KEPT = f"ray_chattts_.*|{'|'.join(sorted(RAY_METRICS))}"
"""what Prometheus keeps of Ray's exporter, as a regular expression of whole names"""
SCRAPES = (FOLDER / "podmonitor.yaml", ROOT / "container/prometheus.yaml")

COLUMNS, ROWS = 12, 8  # a panel on Grafana's grid of 24 columns


def dashboard() -> dict[str, Any]:
    """Returns the dashboard as Grafana's JSON model."""
    panels = []
    for index, panel in enumerate(PANELS):
        panels.append(
            {
                "id": index + 1,
                "type": "timeseries",
                "title": panel.title,
                "description": panel.description,
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


def runbook_url(alert: Alert) -> str:
    """Returns the address of an alert's section on the site."""
    return f"{SITE}/{RUNBOOK.removesuffix('.md')}/#{alert.name.lower()}"


def rules() -> dict[str, Any]:
    """Returns a Prometheus rule file."""
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
                        "annotations": {"summary": alert.summary, "runbook_url": runbook_url(alert)},
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }


def prometheus_rule() -> dict[str, Any]:
    """Returns the same rules for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "chattts", "labels": {"app.kubernetes.io/part-of": "chattts"}},
        "spec": rules(),
    }


def goals() -> str:
    """Returns the table of objectives."""
    rows = (f"| {objective.summary} | {objective.budget:.1%} | {objective.alert} |" for objective in OBJECTIVES)
    return "\n".join(["| what | in 30 days at most | alert |", "|---|---|---|", *rows])


def files() -> dict[Path, str]:
    """Returns path -> text of every generated file."""
    head = "# Written by `python -m scripts.generate`: edit scripts/generate/alerts.py.\n"
    return {
        FOLDER / "dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
        ROOT / RUNBOOK: with_sections(ROOT / RUNBOOK, {"goals": goals()}),
        **{path: re.sub(r"(?<=regex: )[^,}]*", KEPT, path.read_text(encoding="utf-8")) for path in SCRAPES},
        FOLDER / "rules.yaml": head + yaml.safe_dump(rules(), sort_keys=False, width=1000),
        FOLDER / "prometheusrule.yaml": head + yaml.safe_dump(prometheus_rule(), sort_keys=False, width=1000),
    }
