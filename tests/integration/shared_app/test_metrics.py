"""Metrics as Prometheus sees them, from a service that has spoken, refused and been left."""

import re
import time
from functools import partial

import pytest
import requests

from scripts.generate.monitoring import RAY_METRICS
from serve.observability.metrics.definitions import METRICS, MetricType
from tests.support.cluster import LONG_SPEECH, Cluster
from tests.support.metrics import EXPORT_TIMEOUT_S, Samples, scrape, total
from tests.support.waiting import wait_until


@pytest.fixture
def before(cluster: Cluster) -> Samples:
    """What is exported once everything that earlier tests did has been exported: a refusal sent last has arrived."""
    refusals = partial(total, name="ray_chattts_rejects_total", code="out_of_range")
    earlier = refusals(scrape(cluster))
    assert cluster.speak(speed=9).status_code == 400
    wait_until(lambda: refusals(scrape(cluster)) > earlier, EXPORT_TIMEOUT_S)
    return scrape(cluster)


def test_what_happened_is_what_is_exported(cluster: Cluster, before: Samples):
    reply = cluster.speak(input="Numbers follow: one, two, three.")
    assert reply.status_code == 200
    assert cluster.speak(speed=9).status_code == 400
    leaving = cluster.connect(LONG_SPEECH)
    leaving.recv(2000)
    leaving.close()
    expected = {
        ("ray_chattts_requests_total", "outcome", "done"): 1,
        ("ray_chattts_requests_total", "outcome", "refused"): 1,
        ("ray_chattts_requests_total", "outcome", "left"): 1,
        ("ray_chattts_rejects_total", "code", "out_of_range"): 1,
        ("ray_chattts_ttfa_seconds_count", "streamed", "true"): 2,
    }

    def gained(samples: Samples) -> dict[tuple[str, str, str], float]:
        return {
            (name, tag, value): total(samples, name, **{tag: value}) - total(before, name, **{tag: value})
            for name, tag, value in expected
        }

    wait_until(lambda: gained(scrape(cluster)) == expected, EXPORT_TIMEOUT_S)
    after = scrape(cluster)
    heard = (len(reply.content) // 2) / 24_000
    assert total(after, "ray_chattts_audio_seconds_total") - total(before, "ray_chattts_audio_seconds_total") >= heard - 1e-6
    wait_until(lambda: total(scrape(cluster), "ray_chattts_wasted_steps_total", reason="cancelled") > 0, EXPORT_TIMEOUT_S)


def test_every_metric_of_the_list_is_exported_with_its_tags(cluster: Cluster):
    suffix = {MetricType.HISTOGRAM: "_count"}

    def missing() -> list[str]:
        samples = scrape(cluster)
        return [
            metric.name
            for metric in METRICS
            # Nothing in this suite's texts is dropped, no replica dies, nothing is interrupted and no cache is full before this
            # test may run alone.
            if metric.name
            not in (
                "chattts_text_restarts_total",
                "chattts_text_warnings_total",
                "chattts_retries_total",
                "chattts_cache_evictions_total",
                "chattts_rollbacks_total",
                "chattts_preempted_total",
                "chattts_interruptions_total",
                "chattts_unheard_steps_total",
                "chattts_resumed_replies_total",  # tests/unit/serve/http/test_resume.py
                "chattts_fail_overs_total",  # these three are in tests/integration/disruptive/test_failures.py
                "chattts_repeated_steps_total",
                "chattts_fail_over_seconds",
            )
            and not any(
                set(metric.tags) <= set(tags) for tags, _ in samples.get(metric.exported + suffix.get(metric.type, ""), [])
            )
        ]

    cluster.speak(cache="default")
    cluster.speak(cache="default")
    cluster.speak(speed=9)
    leaving = cluster.connect(LONG_SPEECH)
    leaving.recv(2000)
    leaving.close()
    deadline = time.monotonic() + EXPORT_TIMEOUT_S
    while missing() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert missing() == []


def test_no_word_of_a_text_and_no_id_is_in_the_metrics(cluster: Cluster, before: Samples):
    assert (
        cluster.speak(input="Canarybird sings.", user="canary-user", headers={"X-Request-ID": "canary-id"}).status_code == 200
    )
    spoken = ("ray_chattts_requests_total", "ray_chattts_characters_total", "ray_chattts_audio_seconds_total")
    wait_until(lambda: all(total(scrape(cluster), name) > total(before, name) for name in spoken), EXPORT_TIMEOUT_S)
    exposition = requests.get(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=10).text.lower()
    assert "ray_chattts" in exposition
    assert "canary" not in exposition


def test_the_metrics_of_ray_that_the_board_names_are_exported(cluster: Cluster):
    cluster.speak()
    # Exported only where a deployment scales by itself.
    wanted = RAY_METRICS - {"ray_serve_autoscaling_target_replicas"}

    def exported() -> set[str]:
        text = requests.get(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=10).text
        return set(re.findall(r"^(ray_\w+)\{", text, re.MULTILINE))

    deadline = time.monotonic() + EXPORT_TIMEOUT_S
    while wanted - exported() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert wanted <= exported(), wanted - exported()
