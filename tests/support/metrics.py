"""Metrics: what Prometheus would read from the session's cluster."""

import re

import requests

from tests.support.cluster import Cluster

EXPORT_TIMEOUT_S = 40.0

Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(cluster: Cluster) -> Samples:
    """Returns name -> [(tags, value)] of the service's own metrics."""
    samples: Samples = {}
    for line in requests.get(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=10).text.splitlines():
        found = re.fullmatch(r"(ray_chattts_\w+)\{(.*)\} (\S+)", line)
        if found:
            tags = dict(re.findall(r'(\w+)="([^"]*)"', found[2]))
            samples.setdefault(found[1], []).append((tags, float(found[3])))
    return samples


def total(samples: Samples, name: str, **tags: str) -> float:
    """Returns the sum over all samples of a metric that carry these tags."""
    return sum(value for found, value in samples.get(name, []) if tags.items() <= found.items())
