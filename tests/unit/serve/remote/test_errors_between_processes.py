"""Errors of replicas, as the caller of a handle meets them."""

import pickle

import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError

from pipeline.errors import AtCapacity, EngineDead, EngineFault, NonFiniteOutput
from serve.remote.remote_stages import to_domain


@pytest.mark.parametrize("error", [NonFiniteOutput("nan"), AtCapacity("full", retry_after_s=7.5), EngineDead("dead")])
def test_errors_cross_processes_as_they_were(error):
    wrapped = RayTaskError("f", "traceback", error).as_instanceof_cause()
    back = to_domain(wrapped)
    assert type(back) is type(error)
    assert back.message == error.message
    assert type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - our own bytes
    if isinstance(error, AtCapacity):
        assert back.retry_after_s == 7.5


def test_serves_own_errors_become_the_domains():
    full = to_domain(BackPressureError(3, 2, 429, 4.0))
    assert isinstance(full, AtCapacity)
    assert full.retry_after_s == 4.0
    assert type(to_domain(RayActorError())) is EngineDead
    assert type(to_domain(RuntimeError("x"))) is EngineFault
    assert "x" not in to_domain(RuntimeError("x")).message.split()
