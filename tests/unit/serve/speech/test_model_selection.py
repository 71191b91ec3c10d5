"""Model selection: which version `model` means, and a body adapted to a version with fewer capabilities."""

from dataclasses import replace

import requests

from pipeline.checkpoint.capabilities import ALL_CAPABILITIES, Capabilities
from pipeline.config import PipelineConfig
from serve.config.model_versions import CompatConfig, ModelConfig, versions_of
from serve.resilience.rollout import Rollout
from serve.speech.model_selection import ModelSelector, adapted, listener_of
from serve.speech.schemas.speech import RefineBody, SpeechBody
from tests.support.english_checkpoint import ENGLISH
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.model_versions import V1, V2, V3, rollout


def test_a_version_can_be_pinned_and_openais_names_mean_the_first():
    selector = ModelSelector(rollout(v1=1, v2=1))
    assert selector.version(V3, "x", "nova").id == V3
    for name in ("chattts", "tts-1", "gpt-4o-mini-tts-2025"):
        assert selector.version(name, "x", "nova") == selector.rollout.choose("chattts", "x", "nova")
    assert selector.version("small", "x", "nova").id == "small@v1"


def test_keys_and_users_are_listeners_and_addresses_without_them():
    assert listener_of("k1", None, "1.2.3.4") == listener_of("k1", None, "5.6.7.8")
    assert listener_of("k1", "u1", None) != listener_of("k1", "u2", None)
    assert listener_of("anonymous", None, "1.2.3.4") == "1.2.3.4"


def test_markup_that_a_version_does_not_support_is_counted_and_strict_refuses_it():
    versions = versions_of(PipelineConfig(), {V1: ModelConfig(compat=CompatConfig(ssml=False))})
    document = '<speak>One<break time="1s"/>two <prosody rate="2">three</prosody> <sub alias="x">four</sub></speak>'
    with serving(make_services(Speaker(), models=ModelSelector(Rollout(versions)))) as live:
        url, body = f"{live.url}/v1/audio/speech/plan", {"input": document, "input_type": "ssml"}
        shown = requests.post(url, json=body, timeout=60).json()
        refused = requests.post(f"{url}?strict=1", json=body, timeout=60)
        plain = requests.post(f"{url}?strict=1", json={"input": "Hi.", "input_type": "text"}, timeout=60)
    assert shown["warnings"] == [{"code": "unsupported_markup", "count": 2}]
    assert [(segment["text"], segment["rate"], segment["silence_ms"]) for segment in shown["segments"]] == [
        ("One", 1.0, 0), ("two", 1.0, 1000), ("three", 1.0, 0), ("four", 1.0, 0),
    ]  # fmt: skip
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_ssml")
    assert plain.status_code == 200


def test_a_version_of_one_voice_speaks_no_dialogue():
    versions = versions_of(PipelineConfig(), {V1: ModelConfig(compat=CompatConfig(ssml=False))})
    with serving(make_services(Speaker(), models=ModelSelector(Rollout(versions)))) as live:
        body = {"turns": [{"text": "One.", "voice": "calm"}, {"text": "Two."}]}
        refused = requests.post(f"{live.url}/v1/audio/dialogue", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_dialogue")


def test_the_version_that_answers_decides_about_languages():
    english, both, chinese = (Capabilities(languages=languages) for languages in (("en",), ("zh", "en"), ("zh",)))

    def lost(selector: ModelSelector, model: str) -> tuple[str, ...]:
        body = SpeechBody(input="x", model=model, language="zh-CN")
        return selector.apply_to_body(body, caller="anonymous", host="1.2.3.4", voice="nova", strict=False).lost

    models = ModelSelector(rollout(v1=1), {V1: english, V2: both, V3: chinese})
    assert (lost(models, "chattts"), lost(models, V1), lost(models, V2), lost(models, V3)) == (
        ("language",),
        ("language",),
        (),
        (),
    )
    assert [models.languages(model) for model in (V1, V2, V3, "chattts", "tts-1", "")] == [
        ("en",), ("zh", "en"), ("zh",), ("en",), ("en",), ("en",),
    ]  # fmt: skip
    assert ModelSelector(rollout(v2=3, v1=1), {V1: english, V2: both}).languages("chattts") == ("en",), "whichever is drawn"
    assert ModelSelector(rollout(v2=1, v1=0), {V1: english, V2: both}).languages("chattts") == ("zh", "en")


HABITS_OF_BREAKS = Capabilities(control_tags=("[break_4]", "[break_5]", "[laugh_0]"))


def test_habits_of_the_refine_pass_that_were_not_taught_are_named_and_left_at_their_defaults():
    body = SpeechBody(input="x", refine=RefineBody(oral=9, laugh=0, **{"break": 5}))
    fitted, lost = adapted(body, CompatConfig(), HABITS_OF_BREAKS)
    assert lost == ("refine.oral",)
    assert fitted.refine == RefineBody(laugh=0, **{"break": 5})
    assert adapted(SpeechBody(input="x", refine=True), CompatConfig(), HABITS_OF_BREAKS)[1] == ()
    assert adapted(SpeechBody(input="x", refine=RefineBody(guard="off")), CompatConfig(), HABITS_OF_BREAKS)[1] == ()
    assert adapted(body, CompatConfig(), ALL_CAPABILITIES) == (body, ())


def test_a_user_has_an_effect_where_versions_are_drawn_and_is_named_elsewhere():
    def lost(selector: ModelSelector, model: str, user: str | None = "u") -> tuple[str, ...]:
        body = SpeechBody(input="x", model=model, user=user)
        return selector.apply_to_body(body, caller="anonymous", host=None, voice="nova", strict=False).lost

    drawn = ModelSelector(rollout(v1=1, v2=1))
    assert lost(drawn, "chattts") == lost(drawn, "tts-1") == lost(drawn, V1, None) == ()
    assert lost(drawn, V1) == lost(ModelSelector(rollout(v1=1)), "chattts") == ("user",)


def test_the_manifest_is_the_default_and_the_operator_has_the_last_word():
    body = SpeechBody(input="x", refine=True, speed=0.5, speed_mode="auto", language="zh", allow_control_tags=True)
    assert adapted(body, CompatConfig(), ALL_CAPABILITIES) == (body, ())
    fitted, lost = adapted(body, CompatConfig(), ENGLISH)
    assert lost == ("refine", "speed_mode", "language")
    assert (fitted.refine, fitted.speed_mode, fitted.language) == (False, "stretch", "auto")
    assert adapted(body, CompatConfig(refine=True, speed_token=True), ENGLISH)[1] == ("language",)
    assert adapted(body, CompatConfig(refine=False, speed_token=False), ALL_CAPABILITIES)[1] == ("refine", "speed_mode")
    no_tags = Capabilities(control_tags=())
    assert adapted(body, CompatConfig(), no_tags)[1] == ("allow_control_tags",)
    assert adapted(body, CompatConfig(control_tags=False), ALL_CAPABILITIES)[1] == ("allow_control_tags",)


def test_a_version_without_tags_drops_them_and_counts_them():
    version = replace(versions_of(PipelineConfig(), {})[0], compat=CompatConfig(control_tags=False))
    models = ModelSelector(Rollout((version,)))
    with serving(make_services(Speaker(), models=models)) as live:
        body = {"input": "a [laugh] b", "allow_control_tags": True}
        shown = requests.post(f"{live.url}/v1/text/normalize", json=body, timeout=60).json()
    assert shown["text"] == "a b"
    assert shown["warnings"] == [{"code": "control_tag_not_taught", "count": 7}]
