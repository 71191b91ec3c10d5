"""The cache behind real handles: a second request takes no step, and nobody hears a difference."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.support.cluster import Cluster
from tests.support.waiting import wait_until

TEXT = {"input": "This is said twice. The second time nobody makes it.", "cache": "default", "seed": 77}


def steps(cluster: Cluster) -> int:
    return sum(stats["steps"] for stats in cluster.health()["acoustic"])


@pytest.mark.parametrize("fields", [{}, {"refine": {"oral": 2}}], ids=["plain", "refined"])
def test_what_was_said_before_is_heard_again_without_a_step(cluster: Cluster, fields: dict[str, object]):
    requests.delete(cluster.url("/v1/audio/speech/cache"), timeout=10).raise_for_status()
    alone = cluster.speak(**TEXT | fields | {"cache": "no-store"})
    first = cluster.speak(**TEXT | fields)
    wait_until(lambda: cluster.slots_used() == 0, 10.0)
    before = steps(cluster)
    again = cluster.speak(**TEXT | fields)
    slower = cluster.speak(**TEXT | fields | {"speed": 0.8, "sample_rate": 8000, "post": True})
    assert [reply.headers["X-Cache"] for reply in (alone, first, again, slower)] == ["bypass", "miss", "hit", "hit"]
    assert alone.content == first.content == again.content
    assert steps(cluster) == before
    uncached = cluster.speak(**TEXT | fields | {"speed": 0.8, "sample_rate": 8000, "post": True, "cache": "no-store"})
    assert uncached.content == slower.content
    assert requests.delete(cluster.url("/v1/audio/speech/cache"), timeout=10).status_code == 204
    assert cluster.speak(**TEXT | fields | {"cache": "only-if-cached"}).json()["error"]["code"] == "not_cached"


def test_equal_requests_at_once_are_made_once(cluster: Cluster):
    body = {"input": "Eight people want to hear this at the same moment, and it is made once.", "cache": "default", "seed": 5}
    before = steps(cluster)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: cluster.speak(**body), range(8)))
    wait_until(lambda: cluster.slots_used() == 0, 10.0)
    made = steps(cluster) - before
    assert len({hashlib.sha256(reply.content).hexdigest() for reply in replies}) == 1
    before = steps(cluster)
    assert cluster.speak(**body | {"cache": "no-store"}).content == replies[0].content
    wait_until(lambda: cluster.slots_used() == 0, 10.0)
    assert steps(cluster) - before == made
    assert [reply.headers["X-Cache"] for reply in replies].count("miss") == 1
