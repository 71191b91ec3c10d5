"""The table of errors: every domain error has its status, and an unknown one says nothing about itself."""

import pytest

from pipeline import errors
from pipeline.errors import AtCapacity, StageAsleep, StageUnavailable, SynthesisError
from serve.errors import ERROR_SPECS, retry_spread, to_api_error


def kinds_of_errors() -> list[type[SynthesisError]]:
    kinds = [SynthesisError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return [kind for kind in kinds if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", kinds_of_errors())
def test_every_domain_error_has_its_own_line_in_the_table(kind):
    assert kind in ERROR_SPECS
    waits = issubclass(kind, AtCapacity) or kind in (StageAsleep, StageUnavailable)
    error = kind("x", retry_after_s=0.2) if waits else kind("x")
    reply = to_api_error(error)
    headers = reply.reply_headers()
    assert 400 <= reply.spec.status < 600
    if reply.spec.status in (429, 503):
        assert int(headers["Retry-After"]) >= 1
        assert 0 < int(headers["Retry-After-Ms"]) <= 1000 * int(headers["Retry-After"])


def test_clients_that_are_refused_together_come_back_one_after_the_other():
    refusal = to_api_error(AtCapacity("x", retry_after_s=2.0))
    waits = {int(refusal.reply_headers(retry_spread())["Retry-After-Ms"]) for _ in range(100)}
    assert min(waits) >= 2000
    assert max(waits) <= 3000
    assert len(waits) > 50
    assert {int(refusal.reply_headers(retry_spread())["Retry-After"]) for _ in range(100)} <= {2, 3}
    day = to_api_error(AtCapacity("x", retry_after_s=86_400.0))
    assert day.reply_headers(1.0)["Retry-After"] == "86400", "what a key has used up comes back at its own time"


def test_an_unknown_error_reveals_nothing():
    assert "secret" not in str(to_api_error(RuntimeError("secret")).body("r"))
