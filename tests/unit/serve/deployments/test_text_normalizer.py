"""The text stage: several workers in one replica."""

from pipeline.text.isolation.frontend import TextStats
from serve.deployments.text_normalizer import together


def test_several_text_workers_of_a_replica_are_reported_as_one():
    one = TextStats(waiting=2, asked_s=0.5, answers=10, read_s=0.01, busy_s=3.0, restarts=1)
    two = TextStats(waiting=1, asked_s=0.0, answers=5, read_s=0.02, busy_s=1.0, restarts=0)
    assert together([one, two]) == TextStats(waiting=3, asked_s=0.5, answers=15, read_s=0.02, busy_s=4.0, restarts=1)
