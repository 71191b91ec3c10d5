"""Several versions of the model: who is heard by whom, who loses its share, what a version that knows less is told."""

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import PipelineConfig
from pipeline.errors import (
    AtCapacity,
    ConfigError,
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    NonFiniteOutput,
    StageUnavailable,
)
from pipeline.types import AudioChunk, Passage, Pronunciation, PronunciationKind, Prosody, SynthesisRequest
from serve.config.app_config import read_app_config
from serve.config.config_file import find_mistakes
from serve.config.model_versions import CompatConfig, ModelConfig, RoutesConfig, ShadowConfig, deployments_of, versions_of
from serve.remote.version_pipelines import is_its_failure, trouble_in
from serve.speech.model_selection import ModelSelector, adapted, listener_of, plain
from serve.speech.schemas.speech import SpeechBody
from serve.versions.rollout import Rollout
from serve.versions.shadow import Comparison, Shadow, compare
from tests.support.clock import HeldClock
from tests.support.fakes import Speaker, make_services, sine
from tests.support.live_server import serving

V1, V2, V3 = "chattts@v1", "chattts@v2", "chattts@v3"
VERSIONS = versions_of(PipelineConfig(), {V1: ModelConfig(), V2: ModelConfig(), V3: ModelConfig(), "small@v1": ModelConfig()})


def rollout(clock: HeldClock | None = None, /, **weights: float) -> Rollout:
    made = Rollout(VERSIONS, clock=clock or HeldClock(0.0))
    made.configure(RoutesConfig(weights={f"chattts@{version}": weight for version, weight in weights.items()}))
    return made


def heard_by(made: Rollout, listeners: range) -> dict[str, str]:
    return {f"l{number}": made.choose("chattts", f"l{number}", "nova").id for number in listeners}


# Who is heard.


def test_a_canary_of_a_tenth_is_heard_by_a_tenth():
    count = 4000
    shares = heard_by(rollout(v1=90, v2=10), range(count))
    canary = sum(version == V2 for version in shares.values())
    assert abs(canary - 0.1 * count) < 5 * (count * 0.1 * 0.9) ** 0.5, "five standard deviations of the binomial"
    assert V3 not in shares.values()


@given(listener=st.text(max_size=20), voice=st.text(max_size=20), weights=st.tuples(*[st.integers(1, 100)] * 3))
def test_a_listener_hears_one_version_for_a_voice(listener, voice, weights):
    first, second = (rollout(v1=weights[0], v2=weights[1], v3=weights[2]) for _ in range(2))
    assert {first.choose("chattts", listener, voice).id for _ in range(3)} == {second.choose("chattts", listener, voice).id}


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_growing_canary_takes_listeners_and_gives_none_back(less, more):
    before = heard_by(rollout(v1=100, v2=min(less, more), v3=20), range(200))
    after = heard_by(rollout(v1=100, v2=max(less, more), v3=20), range(200))
    assert all(after[who] in (version, V2) for who, version in before.items())


def test_without_weights_the_first_version_speaks_and_names_keep_to_themselves():
    made = rollout()
    assert set(heard_by(made, range(50)).values()) == {V1}
    assert made.choose("small", "x", "nova").id == "small@v1"
    assert made.shares("chattts") == {V1: 1.0, V2: 0.0, V3: 0.0}


# Who loses its share.


def feed(made: Rollout, version: str, count: int, *, failed: int = 0, first_audio_s: float = 0.2) -> None:
    for number in range(count):
        made.ended(version, failed=number < failed, first_audio_s=None if number < failed else first_audio_s)


def test_a_canary_that_fails_is_rolled_back_and_tried_again_later_and_later():
    clock = HeldClock(0.0)
    made = rollout(clock, v1=90, v2=10)
    feed(made, V1, 100, failed=1)
    feed(made, V2, 19, failed=19)
    assert made.out(V2) == "", "nobody is judged by a few"
    feed(made, V2, 1)
    assert made.out(V2).startswith("errors")
    assert set(heard_by(made, range(200)).values()) == {V1}
    for hold_s in (600, 1200, 2400):
        clock.now += hold_s - 1
        assert made.out(V2)
        clock.now += 1
        assert made.out(V2) == ""
        assert V2 in heard_by(made, range(200)).values()
        feed(made, V2, 20, failed=20)
        assert made.out(V2)
    assert made.roll_backs(V2) == 4
    made.configure(RoutesConfig(weights={V1: 80, V2: 20}))
    assert made.out(V2) == "", "new weights are a new trial"
    assert made.roll_backs(V2) == 4


def test_a_slow_canary_is_rolled_back_and_a_slower_machine_is_not():
    made = rollout(v1=90, v2=10)
    feed(made, V1, 30, first_audio_s=1.0)
    feed(made, V2, 30, first_audio_s=1.4)
    assert made.out(V2) == ""
    feed(made, V2, 40, first_audio_s=1.8)
    assert made.out(V2).startswith("latency")


def test_failures_everybody_has_roll_nobody_back():
    made = rollout(v1=90, v2=10)
    for _ in range(40):
        feed(made, V1, 2, failed=1)
        feed(made, V2, 2, failed=1)
    assert made.out(V2) == ""


def test_the_stable_version_is_never_rolled_back():
    made = rollout(v1=90, v2=10)
    feed(made, V1, 100, failed=100)
    assert made.shares("chattts")[V1] == pytest.approx(0.9)


def test_old_requests_do_not_count():
    clock = HeldClock(0.0)
    made = rollout(clock, v1=90, v2=10)
    feed(made, V2, 15, failed=15)
    clock.now += 301
    feed(made, V2, 10, failed=10)
    assert made.out(V2) == ""


def test_probes_take_a_version_out_and_bring_it_back_with_hysteresis():
    made = rollout(v1=50, v2=50)
    for version in (V1, V2):
        made.probed(version, "")
    for look in range(3):
        assert made.out(V2) == ""
        made.probed(V2, "no answer")
        made.probed(V1, "") if look else made.probed(V1, "no answer")
    assert made.out(V2) == "no answer"
    assert made.out(V1) == ""
    assert made.shares("chattts") == {V1: 1.0, V2: 0.0, V3: 0.0}
    for _ in range(5):
        made.probed(V2, "")
    made.probed(V2, "no answer")
    for _ in range(6):
        assert made.out(V2)
        made.probed(V2, "")
    assert made.out(V2) == ""


def test_a_version_that_was_never_seen_to_work_gets_no_requests():
    made = rollout(v1=50, v2=50)
    made.probed(V1, "")
    made.probed(V2, "no answer")
    assert set(heard_by(made, range(100)).values()) == {V1}
    made.probed(V2, "")
    assert V2 in heard_by(made, range(100)).values()


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (NonFiniteOutput("x"), True),
        (EngineDead("x"), True),
        (StageUnavailable("x", retry_after_s=1.0), True),
        (DeadlineExceeded("x"), True),
        (AtCapacity("x", retry_after_s=1.0), False),
        (InvalidRequest("x"), False),
        (asyncio.CancelledError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_version_answers_for_its_numbers_and_its_time_not_for_clients_and_crowds(error, counts):
    assert is_its_failure(error) is counts


def test_when_all_are_out_the_stable_one_speaks():
    made = rollout(v1=90, v2=10)
    for version in (V1, V2):
        for _ in range(3):
            made.probed(version, "no answer")
    assert made.shares("chattts") == {V1: 1.0, V2: 0.0, V3: 0.0}


@given(
    st.lists(st.tuples(st.sampled_from([V1, V2, V3]), st.booleans(), st.floats(0, 5), st.floats(0, 400)), max_size=60),
    st.tuples(*[st.integers(0, 5)] * 3),
)
def test_whatever_happens_shares_add_up_and_somebody_speaks(events, weights):
    clock = HeldClock(0.0)
    made = rollout(clock, v1=weights[0], v2=weights[1], v3=weights[2])
    for version, failed, first_audio_s, pause_s in events:
        made.ended(version, failed=failed, first_audio_s=first_audio_s)
        made.probed(version, "trouble" if failed else "")
        clock.now += pause_s
        assert sum(made.shares("chattts").values()) == pytest.approx(1.0)
        assert made.choose("chattts", "l", "v").id in (V1, V2, V3)


def test_a_probe_finds_silence_and_full_memory():
    assert trouble_in({"a": [{"gpu_mem_percent": None}], "b": [{"gpu_mem_percent": 90.0}]}, 90) == ""
    assert "no answer from b" in trouble_in({"a": [{}], "b": []}, 90)
    assert "91 %" in trouble_in({"a": [{"gpu_mem_percent": 91.0}, {"gpu_mem_percent": 10.0}]}, 90)


# What `model` may say.


def test_a_version_can_be_pinned_and_openais_names_mean_the_first():
    desk = ModelSelector(rollout(v1=1, v2=1))
    assert desk.version(V3, "x", "nova").id == V3
    for name in ("chattts", "tts-1", "gpt-4o-mini-tts-2025"):
        assert desk.version(name, "x", "nova") == desk.rollout.choose("chattts", "x", "nova")
    assert desk.version("small", "x", "nova").id == "small@v1"


def test_keys_and_users_are_listeners_and_addresses_without_them():
    assert listener_of("k1", None, "1.2.3.4") == listener_of("k1", None, "5.6.7.8")
    assert listener_of("k1", "u1", None) != listener_of("k1", "u2", None)
    assert listener_of("anonymous", None, "1.2.3.4") == "1.2.3.4"


def test_models_are_listed_with_their_state():
    with serving(make_services(Speaker(), models=ModelSelector(rollout(v1=3, v2=1)))) as live:
        cards = {card["id"]: card for card in requests.get(f"{live.url}/v1/models", timeout=5).json()["data"]}
        assert cards["chattts"]["versions"] == {V1: 0.75, V2: 0.25, V3: 0.0}
        assert cards[V2]["share"] == 0.25
        assert cards[V2]["state"] == "in_service"
        assert requests.get(f"{live.url}/v1/models/{V2}", timeout=5).json() == cards[V2]
        pinned = live.speak(model=V2)
        assert pinned.headers["X-Model-Version"] == V2
        assert live.services.speech.stream.__self__.requests[-1].model == V2
        assert live.speak(model="chattts@v9").json()["error"]["code"] == "model_not_found"


# A version that knows less.

LITTLE = CompatConfig(ssml=False, control_tags=False, refine=False, speed_token=False, sample_rate=16_000, top_k=10)


def test_what_a_version_does_not_know_is_left_out_and_said():
    body = SpeechBody(input="x", refine=True, speed=1.2, speed_mode="token", allow_control_tags=True)
    fitted, lost = adapted(body, LITTLE)
    assert lost == ("refine", "speed_mode", "allow_control_tags")
    assert (fitted.refine, fitted.speed_mode) == (False, "stretch")
    assert (fitted.sample_rate, fitted.top_k) == (16_000, 10)


def test_what_a_client_says_is_no_default():
    fitted, lost = adapted(SpeechBody(input="x", sample_rate=48_000, top_k=50), LITTLE)
    assert (fitted.sample_rate, fitted.top_k, lost) == (48_000, 50, ())
    assert adapted(SpeechBody(input="x", output_format="pcm_8000"), LITTLE)[0].sample_rate is None
    body = SpeechBody(input="x")
    assert adapted(body, CompatConfig())[0] is body


def test_of_a_document_words_tags_and_silence_are_left():
    passage = Passage(
        "Word.", (Pronunciation(0, 4, PronunciationKind.SAY_AS, "characters"),), True, "en", Prosody("nova", 1.5, 3.0), 500
    )
    assert plain(passage) == Passage("Word.", control_tags=True, language="en", silence_ms=500)


def test_a_reply_says_what_was_lost_and_strict_refuses():
    versions = versions_of(PipelineConfig(), {V1: ModelConfig(compat=LITTLE)})
    with serving(make_services(Speaker(), models=ModelSelector(Rollout(versions)))) as live:
        reply = live.speak(refine=True)
        assert reply.headers["X-Ignored-Fields"] == "refine"
        assert reply.headers["Content-Type"] == "audio/pcm; rate=16000; channels=1"
        url = f"{live.url}/v1/audio/speech?strict=1"
        assert requests.post(url, json={"input": "x", "refine": True}, timeout=5).status_code == 400


# Shadows.


def shadow_of(room: bool = True, fails: bool = False) -> tuple[Shadow, list[Comparison]]:
    told: list[Comparison] = []

    async def stream(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        assert request.model == V2
        if fails:
            raise RuntimeError("canary")
        yield AudioChunk(2 * sine(5, 0, 36_000), 0, is_last=True)

    return Shadow(stream, lambda share: room, told.append), told


CONFIG = ShadowConfig(version=V2, share=1.0)
REQUEST = SynthesisRequest("r", "x", "nova", model=V1)


def run(shadow: Shadow, times: int = 1) -> None:
    async def go() -> None:
        for _ in range(times):
            shadow.begin(REQUEST, [sine(5, 0, 24_000)], CONFIG)
        while shadow._running:
            await asyncio.gather(*shadow._running)

    asyncio.run(go())


def test_a_shadow_is_compared_in_length_and_loudness():
    shadow, told = shadow_of()
    run(shadow)
    assert told[0].result == "compared"
    assert told[0].duration_ratio == 1.5
    assert told[0].loudness_db == pytest.approx(6.02, abs=0.2)


def test_shadows_are_dropped_before_they_disturb_anybody():
    shadow, told = shadow_of()
    run(shadow, times=5)
    assert sorted(one.result for one in told) == ["compared", *["dropped"] * 4]
    shadow, told = shadow_of(room=False)
    run(shadow)
    assert [one.result for one in told] == ["dropped"]


def test_a_shadow_that_fails_is_counted_and_nothing_else():
    shadow, told = shadow_of(fails=True)
    run(shadow)
    assert [one.result for one in told] == ["failed"]


def test_a_version_is_no_shadow_of_itself():
    shadow, _ = shadow_of()
    assert shadow.wanted(REQUEST, CONFIG)
    assert not shadow.wanted(SynthesisRequest("r", "x", "nova", model=V2), CONFIG)
    assert not shadow.wanted(REQUEST, None)
    assert compare(V2, [], [], 24_000).loudness_db is None
    assert np.isclose(compare(V2, [sine(1, 0, 10)], [], 24_000).duration_ratio, 0)


# The file.


def test_every_version_has_deployments_of_its_own_or_shares_a_vocoder():
    config = read_app_config({"models": {V1: {}, V2: {"engine": {"slots": 4}, "vocoder_of": V1}}})
    assert deployments_of(config.versions) == (
        "Ingress", "TextNormalizer", f"AcousticModel-{V1}", f"Vocoder-{V1}", f"AcousticModel-{V2}",
    )  # fmt: skip
    assert [version.pipeline.engine.slots for version in config.versions] == [8, 4]
    assert deployments_of(read_app_config({}).versions) == ("Ingress", "TextNormalizer", "AcousticModel", "Vocoder")


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ({V2: {"engine": {"slotz": 4}}}, rf"args.models.{V2}.engine.slotz: unknown key; did you mean slots\?"),
        ({V2: {"vocoder_of": V1}}, "must be another version"),
        ({V2: {"vocoder_of": V2}}, "must be another version"),
        ({V1: {}, V2: {"vocoder_of": V1, "vocoder": {}}}, "remove one of the two"),
        ({"v2": {}}, "pattern"),
    ],
)
def test_wrong_models_are_named(models, says):
    with pytest.raises(ConfigError, match=says):
        read_app_config({"models": models})


def test_weights_of_versions_nobody_has_are_a_mistake_of_the_file():
    def document(user_config: object) -> dict:
        names = ["TextNormalizer", f"AcousticModel-{V1}", f"Vocoder-{V1}"]
        deployments = [{"name": name, "max_ongoing_requests": 1000} for name in names]
        ingress = {"name": "Ingress", "max_ongoing_requests": 1000, "user_config": user_config}
        application = {
            "import_path": "serve.app:build_app",
            "args": {"models": {V1: {}}},
            "deployments": [*deployments, ingress],
        }
        return {"http_options": {"host": "127.0.0.1"}, "applications": [application]}

    assert not find_mistakes(document({"weights": {V1: 1}}))
    assert "chattts@v2 is not one of models: chattts@v1" in find_mistakes(document({"weights": {V2: 1}}))[0]
    assert "did you mean weights?" in find_mistakes(document({"weight": {V1: 1}}))[0]
