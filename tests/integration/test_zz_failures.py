"""Killed replicas. Last, because the cluster needs a moment after each."""

import time

import pytest
import requests

from tests.integration.cluster import LONG_SPEECH, Cluster, wait_until


def test_a_killed_acoustic_replica_cuts_its_streams_and_comes_back(cluster: Cluster, capsys):
    reply = requests.post(cluster.url("/v1/audio/speech"), data=LONG_SPEECH, stream=True, timeout=60)
    pieces = reply.iter_content(4096)
    next(pieces)
    killed = cluster.kill_replica("chattts", "AcousticModel")
    died = time.monotonic()
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        list(pieces)
    cut_s = time.monotonic() - died
    statuses = set()
    while (again := cluster.speak(seed=1)).status_code != 200:
        statuses.add(again.status_code)
        assert again.json()["error"]["code"] in ("engine_dead", "overloaded", "timeout")
        assert time.monotonic() - died < 60
    back_s = time.monotonic() - died
    with capsys.disabled():
        print(f"\n  killed: cut after {cut_s:.2f} s, speaking again after {back_s:.1f} s, between: {statuses or '-'}")
    assert killed not in cluster.replicas("chattts", "AcousticModel")
    assert statuses <= {503, 429, 504}


def test_a_killed_vocoder_replica_comes_back(cluster: Cluster):
    cluster.kill_replica("chattts", "Vocoder")
    died = time.monotonic()
    while (reply := cluster.speak(seed=1)).status_code != 200:
        assert reply.status_code in (503, 504), reply.text
        assert time.monotonic() - died < 60


def test_a_killed_ingress_replica_leaves_no_slot_taken(cluster: Cluster):
    client = cluster.connect(LONG_SPEECH)
    assert b" 200 " in client.recv(4096)
    wait_until(lambda: cluster.in_flight() > 0, 5.0)
    cluster.kill_replica("chattts", "Ingress")

    def back() -> bool:
        try:
            return requests.get(cluster.url("/ready"), timeout=5).status_code == 200
        except requests.RequestException:
            return False

    wait_until(back, 60.0)
    wait_until(lambda: cluster.slots_used() == 0, 5.0)
    client.close()
