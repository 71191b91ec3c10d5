"""Several versions of the model: who is heard by whom, who loses its share, what a version that knows less is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.config.model_versions import RoutesConfig
from serve.resilience.rollout import FAILED_PROBES, Rollout
from serve.stages.replicas import trouble_in
from tests.support.clock import HeldClock
from tests.support.model_versions import V1, V2, V3, VERSIONS, rollout


def heard_by(routes: Rollout, listeners: range) -> dict[str, str]:
    return {f"l{number}": routes.choose("chattts", f"l{number}", "nova").id for number in listeners}


def test_a_canary_with_a_tenth_gets_a_tenth_of_the_listeners():
    count = 4000
    shares = heard_by(rollout(v1=90, v2=10), range(count))
    canary = sum(version == V2 for version in shares.values())
    assert abs(canary - 0.1 * count) < 5 * (count * 0.1 * 0.9) ** 0.5, "five standard deviations of the binomial"
    assert V3 not in shares.values()


@given(listener=st.text(max_size=20), voice=st.text(max_size=20), weights=st.tuples(*[st.integers(1, 100)] * 3))
def test_a_listener_gets_one_version_per_voice(listener, voice, weights):
    first, second = (rollout(v1=weights[0], v2=weights[1], v3=weights[2]) for _ in range(2))
    assert {first.choose("chattts", listener, voice).id for _ in range(3)} == {second.choose("chattts", listener, voice).id}


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_growing_canary_takes_listeners_and_gives_none_back(less, more):
    before = heard_by(rollout(v1=100, v2=min(less, more), v3=20), range(200))
    after = heard_by(rollout(v1=100, v2=max(less, more), v3=20), range(200))
    assert all(after[listener] in (version, V2) for listener, version in before.items())


def test_without_weights_the_first_version_speaks_and_names_keep_to_themselves():
    routes = rollout()
    assert set(heard_by(routes, range(50)).values()) == {V1}
    assert routes.choose("small", "x", "nova").id == "small@v1"
    assert routes.shares("chattts") == {V1: 1.0, V2: 0.0, V3: 0.0}


# Who loses its share.


def feed(routes: Rollout, version: str, count: int, *, failed: int = 0, first_audio_s: float = 0.2) -> None:
    for number in range(count):
        routes.ended(version, failed=number < failed, first_audio_s=None if number < failed else first_audio_s)


def test_a_canary_that_fails_is_rolled_back_and_tried_again_later_and_later():
    clock = HeldClock(0.0)
    routes = rollout(clock, v1=90, v2=10)
    feed(routes, V1, 100, failed=1)
    feed(routes, V2, 19, failed=19)
    assert routes.out(V2) == "", "nobody is judged by a few"
    feed(routes, V2, 1)
    assert routes.out(V2).startswith("errors")
    assert set(heard_by(routes, range(200)).values()) == {V1}
    for hold_s in (600, 1200, 2400):
        clock.now += hold_s - 1
        assert routes.out(V2)
        clock.now += 1
        assert routes.out(V2) == ""
        assert V2 in heard_by(routes, range(200)).values()
        feed(routes, V2, 20, failed=20)
        assert routes.out(V2)
    assert routes.roll_backs(V2) == 4
    routes.configure(RoutesConfig(weights={V1: 80, V2: 20}))
    assert routes.out(V2) == "", "new weights are a new trial"
    assert routes.roll_backs(V2) == 4


def test_a_slow_canary_is_rolled_back_and_a_slower_machine_is_not():
    routes = rollout(v1=90, v2=10)
    feed(routes, V1, 30, first_audio_s=1.0)
    feed(routes, V2, 30, first_audio_s=1.4)
    assert routes.out(V2) == ""
    feed(routes, V2, 40, first_audio_s=1.8)
    assert routes.out(V2).startswith("latency")


def test_failures_of_every_version_roll_none_back():
    routes = rollout(v1=90, v2=10)
    for _ in range(40):
        feed(routes, V1, 2, failed=1)
        feed(routes, V2, 2, failed=1)
    assert routes.out(V2) == ""


def test_the_stable_version_is_never_rolled_back():
    routes = rollout(v1=90, v2=10)
    feed(routes, V1, 100, failed=100)
    assert routes.shares("chattts")[V1] == pytest.approx(0.9)


def test_old_requests_do_not_count():
    clock = HeldClock(0.0)
    routes = rollout(clock, v1=90, v2=10)
    feed(routes, V2, 15, failed=15)
    clock.now += 301
    feed(routes, V2, 10, failed=10)
    assert routes.out(V2) == ""


def test_probes_take_a_version_out_and_bring_it_back_with_hysteresis():
    routes = rollout(v1=50, v2=50)
    for version in (V1, V2):
        routes.probed(version, "")
    for look in range(3):
        assert routes.out(V2) == ""
        routes.probed(V2, "no answer")
        routes.probed(V1, "") if look else routes.probed(V1, "no answer")
    assert routes.out(V2) == "no answer"
    assert routes.out(V1) == ""
    assert routes.shares("chattts") == {V1: 1.0, V2: 0.0, V3: 0.0}
    for _ in range(5):
        routes.probed(V2, "")
    routes.probed(V2, "no answer")
    for _ in range(6):
        assert routes.out(V2)
        routes.probed(V2, "")
    assert routes.out(V2) == ""


def test_a_version_that_was_never_seen_to_work_gets_no_requests():
    routes = rollout(v1=50, v2=50)
    routes.probed(V1, "")
    routes.probed(V2, "no answer")
    assert set(heard_by(routes, range(100)).values()) == {V1}
    routes.probed(V2, "")
    assert V2 in heard_by(routes, range(100)).values()


def test_a_single_version_with_a_full_gpu_goes_on_and_is_reported():
    routes = Rollout(VERSIONS[:1], clock=HeldClock(0.0))
    full = trouble_in({"AcousticModel": [{"gpu_mem_percent": 93.0}]}, routes.routes.probe.max_gpu_memory_percent)
    assert "93" in full
    routes.probed(V1, "")
    for _ in range(FAILED_PROBES):
        routes.probed(V1, full)
    assert routes.out(V1) == full, "what the alert ChatTTSVersionOut and /health read"
    assert routes.shares("chattts")[V1] == 1.0


def test_when_all_are_out_the_stable_one_speaks():
    routes = rollout(v1=90, v2=10)
    for version in (V1, V2):
        for _ in range(3):
            routes.probed(version, "no answer")
    assert routes.shares("chattts") == {V1: 1.0, V2: 0.0, V3: 0.0}


@given(
    st.lists(st.tuples(st.sampled_from([V1, V2, V3]), st.booleans(), st.floats(0, 5), st.floats(0, 400)), max_size=60),
    st.tuples(*[st.integers(0, 5)] * 3),
)
def test_shares_always_add_up_and_some_version_answers(events, weights):
    clock = HeldClock(0.0)
    routes = rollout(clock, v1=weights[0], v2=weights[1], v3=weights[2])
    for version, failed, first_audio_s, pause_s in events:
        routes.ended(version, failed=failed, first_audio_s=first_audio_s)
        routes.probed(version, "trouble" if failed else "")
        clock.now += pause_s
        assert sum(routes.shares("chattts").values()) == pytest.approx(1.0)
        assert routes.choose("chattts", "l", "v").id in (V1, V2, V3)
