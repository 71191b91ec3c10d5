"""The small rooms of serve/: admission, error table, proxy middleware, bodies, handles' errors, what a process loads."""

import asyncio
import json
import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError

from pipeline import errors
from pipeline.errors import (
    AtCapacity,
    DeadlineUnmeetable,
    Draining,
    EngineDead,
    EngineFault,
    NonFiniteOutput,
    StageUnavailable,
    SynthesisError,
)
from pipeline.types import Lane
from serve import app
from serve.access.admission import AdmissionLimiter
from serve.config.app_config import DEPLOYMENTS, PROJECT
from serve.errors import ERROR_SPECS, ApiError, to_api_error
from serve.http import proxy_middleware as edge
from serve.remote.recent_refusals import RecentOverload
from serve.remote.remote_stages import to_domain
from serve.speech.schemas.base import read_body
from serve.speech.schemas.speech import SpeechBody, ignored_header
from tests.support.clock import HeldClock
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving

# Admission.


def test_a_closed_limiter_admits_nothing_and_cuts_nothing_short():
    admission = AdmissionLimiter(2)
    with admission.acquire():
        assert admission.close() == 1
        with pytest.raises(Draining), admission.acquire():
            pass
        assert admission.close() == 1
    assert admission.close() == 0


def test_admission_counts_and_gives_places_back():
    admission = AdmissionLimiter(2)
    with admission.acquire(), admission.acquire():
        with pytest.raises(AtCapacity), admission.acquire():
            pass
        assert admission.in_flight == 2
    assert admission.in_flight == 0
    with pytest.raises(ValueError, match="inside"), admission.acquire():
        raise ValueError("inside")
    assert admission.in_flight == 0


def test_waiting_times_follow_how_long_requests_stay():
    clock = HeldClock(0.0)
    admission = AdmissionLimiter(4, clock=clock)
    for _ in range(50):
        with admission.acquire():
            clock.now += 10.0
    assert admission.mean_duration_s == pytest.approx(10.0, rel=0.01)
    assert admission.retry_after_s() == pytest.approx(2.5, rel=0.01)


def test_a_crowd_is_told_to_come_back_one_after_the_other():
    admission = AdmissionLimiter(1)
    waits = []
    with admission.acquire():
        for _ in range(100):
            with pytest.raises(AtCapacity) as refusal, admission.acquire():
                pass
            waits.append(refusal.value.retry_after_s)
    assert waits == sorted(waits)
    assert waits[1] > waits[0]
    assert waits[-1] == 60.0


# Errors.


def kinds_of_errors() -> list[type[SynthesisError]]:
    found = [SynthesisError]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", kinds_of_errors())
def test_every_domain_error_has_its_own_line_in_the_table(kind):
    assert kind in ERROR_SPECS
    waits = issubclass(kind, AtCapacity) or kind is StageUnavailable
    error = kind("x", retry_after_s=0.2) if waits else kind("x")
    reply = to_api_error(error)
    headers = reply.reply_headers()
    assert 400 <= reply.spec.status < 600
    if reply.spec.status in (429, 503):
        assert int(headers["Retry-After"]) >= 1


def test_an_unknown_error_says_nothing_about_itself():
    assert "secret" not in str(to_api_error(RuntimeError("secret")).body("r"))


# Handles.


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


# Overload.


def test_what_was_refused_a_moment_ago_is_refused_at_once_in_lanes_no_more_urgent():
    clock = HeldClock(0.0)
    overload = RecentOverload(0.5, clock=clock)
    overload.check("v1", Lane.STANDARD)
    overload.note("v1", Lane.STANDARD, AtCapacity("full", retry_after_s=3.0))
    clock.now = 0.4
    for lane in (Lane.STANDARD, Lane.BULK):
        with pytest.raises(AtCapacity) as refused:
            overload.check("v1", lane)
        assert refused.value.retry_after_s == pytest.approx(2.6)
    overload.check("v1", Lane.INTERACTIVE)
    overload.check("v2", Lane.STANDARD)
    clock.now = 0.5
    overload.check("v1", Lane.STANDARD)


@pytest.mark.parametrize(
    ("error", "asked"), [(AtCapacity("full", retry_after_s=3.0), 1), (DeadlineUnmeetable("late", retry_after_s=3.0), 5)]
)
def test_a_burst_asks_a_full_engine_once(error: AtCapacity, asked: int):
    speaker = Speaker(fails_at=0, error=error)
    services = make_services(speaker)
    object.__setattr__(services, "overload", RecentOverload(600))
    with serving(services) as live:
        replies = [live.speak() for _ in range(5)]
        assert {reply.status_code for reply in replies} == {429}
        assert {reply.headers["Retry-After"] for reply in replies} == {"3"}
        assert speaker.opened == asked
        live.speak(seed=7)
        assert speaker.opened == asked + 1, "the cache may have it"
        live.speak(priority="interactive")
        assert speaker.opened == asked + 2


# Edge.


def headers_behind_the_edge(*headers: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    seen = {}

    async def inner(scope, receive, send):
        seen.update(scope["headers"])

    asyncio.run(edge.middlewares()[-1].cls(inner)({"type": "http", "headers": list(headers)}, None, None))
    return seen


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-timeout-seconds",
        b"X-Request-Disconnect-Disabled",
        b"x-session-id",
        b"X_Session_Id",
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
        b"x-ray-anything",
    ],
)
def test_steering_headers_do_not_pass(name):
    seen = headers_behind_the_edge((name, b"1"), (b"accept", b"*/*"))
    assert name not in seen
    assert seen[b"accept"] == b"*/*"


def test_request_ids_pass_only_when_harmless():
    assert headers_behind_the_edge((b"x-request-id", b"mine.1"))[b"x-request-id"] == b"mine.1"
    assert headers_behind_the_edge((b"x-request-id", b"a,b"))[b"x-request-id"] != b"a,b"
    assert len(headers_behind_the_edge()[b"x-request-id"]) == 32


def test_headers_beyond_any_use_are_refused_before_anything_reads_them():
    sent = []

    async def send(message):
        sent.append(message)

    async def never(scope, receive, send):
        raise AssertionError("it reached the routes")

    scope = {"type": "http", "headers": [(b"x-filler", b"y" * edge.MOST_HEADER_BYTES)]}
    asyncio.run(edge.middlewares()[-1].cls(never)(scope, None, send))
    assert sent[0]["status"] == 431
    assert json.loads(sent[1]["body"])["error"]["code"] == "headers_too_large"
    assert headers_behind_the_edge((b"x-filler", b"y" * (edge.MOST_HEADER_BYTES - 100)))


# Bodies.


def read_or_status(raw: bytes) -> SpeechBody | int:
    try:
        return read_body(SpeechBody, raw)
    except ApiError as refusal:
        return refusal.spec.status


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw):
    assert read_or_status(raw) == 400 or raw.startswith(b"{")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["input", "voice", "speed", "seed", "refine", "stream", "top_k", "temperature", "model"]),
        JSON,
        max_size=6,
    )
)
def test_no_value_breaks_the_reader(body):
    read = read_or_status(json.dumps(body).encode("utf-8", "surrogatepass"))
    assert read == 400 or (0.25 <= read.speed <= 4 and math.isfinite(read.temperature))


def test_ignored_names_fit_into_a_header():
    assert ignored_header(("a", "b\r\nX: 1", "c" * 65)) == "a, +2"
    assert ignored_header(tuple(f"f{index}" for index in range(30))).endswith("f19, +10")


# Processes.


def test_deployments_have_the_names_configurations_know():
    deployed = (app.Ingress, app.TextNormalizer, app.AcousticModel, app.Vocoder)
    assert tuple(deployment.name for deployment in deployed) == DEPLOYMENTS


@pytest.mark.parametrize(
    "modules",
    ["serve.http.api", "serve.http.speech_response", "serve.speech.schemas.speech", "serve.config.app_config", "serve.errors"],
)
def test_the_http_layer_does_not_load_ray(modules):
    check = f"import sys, {modules}; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=PROJECT, timeout=60)
