"""The board and the alerts: every query parses, every alert fires and keeps quiet when it should, every name is exported."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.generate.alerts import ALERTS, BURN_RATES, OBJECTIVES, Alert, Objective
from scripts.generate.kustomize import Manifest, change, render
from scripts.generate.monitoring import KEPT, RAY_METRICS, ROOT, RUNBOOK, dashboard, files, rules
from scripts.generate.panels import PANELS
from serve.observability.metrics.definitions import METRICS, MetricType
from tests.support.services import needed_program

EXPORTED = {
    name
    for metric in METRICS
    for name in (
        [f"{metric.exported}_{part}" for part in ("bucket", "sum", "count")]
        if metric.type is MetricType.HISTOGRAM
        else [metric.exported]
    )
}

CASES = yaml.safe_load((ROOT / "tests/data/alerts.yaml").read_text())


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\bray_\w+", query))


def promtool(*arguments: str) -> None:
    program = needed_program("promtool", "prometheus")
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_are_what_the_lists_say():
    for path, text in files().items():
        assert path.read_text() == text, f"{path.name}: run python -m scripts.generate"


def test_every_metric_a_panel_or_an_alert_names_is_exported():
    named = {name for panel in PANELS for query in panel.queries.values() for name in metrics_in(query)}
    named |= {name for alert in ALERTS for name in metrics_in(alert.query)}
    assert named <= EXPORTED | RAY_METRICS, named - EXPORTED - RAY_METRICS
    assert named >= RAY_METRICS, "nobody looks at the rest"
    dropped = {name for name in named | EXPORTED if not re.fullmatch(KEPT, name)}
    assert not dropped, "Prometheus does not keep them"
    assert not re.fullmatch(KEPT, "ray_serve_deployment_processing_latency_ms_bucket")


def test_each_prometheus_keeps_that_and_no_more():
    (endpoint,) = yaml.safe_load((ROOT / "k8s/monitoring/podmonitor.yaml").read_text())["spec"]["podMetricsEndpoints"]
    ray, _ = yaml.safe_load((ROOT / "container/prometheus.yaml").read_text())["scrape_configs"]
    assert [rule["regex"] for rule in (*endpoint["metricRelabelings"], *ray["metric_relabel_configs"])] == [KEPT, KEPT]


def test_one_alert_fires_always():
    (alert,) = [alert for alert in ALERTS if not metrics_in(alert.query)]
    assert (alert.query, alert.hold, alert.severity) == ("vector(1)", "0m", "none")


def test_every_metric_of_ours_is_on_the_board():
    shown = {name for panel in PANELS for query in panel.queries.values() for name in metrics_in(query)}
    for metric in METRICS:
        if metric.name not in ("chattts_underrun_seconds",):  # continuity says it
            assert {name for name in shown if name.startswith(metric.exported)}, metric.name


def test_every_query_of_the_board_parses(tmp_path: Path):
    queries = [query for panel in PANELS for query in panel.queries.values()]
    group = {
        "name": "board",
        "rules": [{"record": f"board:query:{index}", "expr": query} for index, query in enumerate(queries)],
    }
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [group]}))
    promtool("check", "rules", str(path))


def test_the_rules_pass_prometheus_own_check():
    promtool("check", "rules", str(ROOT / "k8s/monitoring/rules.yaml"))


def check_alert(alert: Alert, bad: dict[str, str], good: dict[str, str], folder: Path, *, minutes: int = 1) -> None:
    """Fires after 175 periods of one series, and not of the other.

    Args:
        minutes: a period.
    """
    rule = next(rule for rule in rules()["groups"][0]["rules"] if rule["expr"] == alert.query)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))

    def case(series: dict[str, str], fires: bool) -> dict[str, Any]:
        labels = {"severity": alert.severity}
        summary = alert.summary
        for label, value in {"deployment": "Vocoder", "instance": "a"}.items():
            if f"$labels.{label}" in summary:
                labels[label] = value
                summary = summary.replace(f"{{{{ $labels.{label} }}}}", value)
        annotations = {"summary": summary, "runbook_url": rule["annotations"]["runbook_url"]}
        return {
            "interval": f"{minutes}m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {
                    "eval_time": f"{175 * minutes}m",
                    "alertname": alert.name,
                    "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}] if fires else [],
                }
            ],
        }

    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{minutes}m", "tests": [case(bad, True), case(good, False)]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", str(folder / "tests.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("alert", [alert for alert in ALERTS if alert.name in CASES], ids=lambda alert: alert.name)
def test_an_alert_fires_when_it_should_and_only_then(alert: Alert, tmp_path: Path):
    check_alert(alert, CASES[alert.name]["fires"], CASES[alert.name]["silent"], tmp_path)


def requests_of(objective: Objective, share: float) -> dict[str, str]:
    """Series of requests of which a share goes wrong as an objective counts it."""
    wrong, rest = round(10_000 * share), round(10_000 * (1 - share))
    match objective.alert:
        case "ChatTTSFirstAudioSlow":
            grow = {'ray_chattts_ttfa_seconds_bucket{le="2.5"}': rest, "ray_chattts_ttfa_seconds_count": 10_000}
        case "ChatTTSStreamsCut":
            grow = {'ray_chattts_requests_total{outcome="cut"}': wrong, 'ray_chattts_requests_total{outcome="done"}': rest}
        case name:
            code = {"ChatTTSFailing": "internal_error", "ChatTTSRefusing": "overloaded"}[name]
            grow = {f'ray_chattts_rejects_total{{code="{code}"}}': wrong, 'ray_chattts_requests_total{outcome="done"}': 10_000}
            grow['ray_chattts_rejects_total{code="out_of_range"}'] = 9_000  # clients' own mistakes
    return {name: f"0+{number}x180" for name, number in grow.items()}


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.alert)
def test_an_objective_alerts_at_each_speed_at_which_its_budget_burns(objective: Objective, tmp_path: Path):
    """A share of 1.5 times the limit fires; 0.8 times what the goal allows never does."""
    alerts = list(objective.alerts())
    assert {alert.severity for alert in alerts} == ({"page", "ticket"} if objective.pages else {"ticket"})
    for alert, (burn, *_) in zip(alerts, BURN_RATES, strict=True):
        bad, good = min(1.0, 1.5 * burn * objective.budget), 0.8 * objective.budget
        minutes = 30 if burn == 1 else 3
        check_alert(alert, requests_of(objective, bad), requests_of(objective, good), tmp_path, minutes=minutes)


def test_every_alert_has_its_page_in_the_runbook():
    headings = re.findall(r"^## (\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    assert headings == list(dict.fromkeys(alert.name for alert in ALERTS))


def test_the_board_is_one_grafana_can_lay_out():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


# The renderer of overlays: kubectl's own result for a small one, and a refusal of everything it does not know.

DATA = Path(__file__).resolve().parents[2] / "data/kustomize"


def sorted_documents(documents: list[Manifest]) -> list[Manifest]:
    return sorted(documents, key=lambda document: (document["kind"], document["metadata"]["name"]))


def test_an_overlay_is_rendered_as_kubectl_renders_it():
    expected = list(yaml.safe_load_all((DATA / "rendered.yaml").read_text()))
    assert sorted_documents(render(DATA / "overlay")) == sorted_documents(expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("namePrefix: my-", "namePrefix"),
        ("labels: [{pairs: {a: b}, includeSelectors: true}]", "labels"),
        ("images: [{name: app, digest: sha256}]", "images"),
        ("patches: [{patch: '[]', target: {labelSelector: a=b}}]", "labelSelector"),
        ("patches: [{patch: '[]', target: {kind: ConfigMap, name: absent}}]", "no ConfigMap absent"),
        ("patches: [{patch: '{kind: ConfigMap, metadata: {name: settings}}'}]", "merging into ConfigMap"),
    ],
)
def test_what_it_does_not_know_it_refuses(line, message, tmp_path: Path):
    (tmp_path / "settings.yaml").write_text("{kind: ConfigMap, metadata: {name: settings}}")
    (tmp_path / "kustomization.yaml").write_text(f"resources: [settings.yaml]\n{line}\n")
    with pytest.raises(ValueError, match=message):
        render(tmp_path)


@pytest.mark.parametrize(("op", "path"), [("remove", "/a"), ("replace", "/b"), ("test", "/a")])
def test_an_operation_it_does_not_know_or_that_finds_nothing_is_refused(op, path):
    with pytest.raises(ValueError, match=path):
        change({"a": 1}, op, path, 2)
