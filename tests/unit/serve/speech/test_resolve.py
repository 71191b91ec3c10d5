"""What a checkpoint cannot do, over HTTP, with the demo checkpoint: no option is accepted and then ignored."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import requests

from pipeline.checkpoint.capabilities import Capabilities
from pipeline.config import PipelineConfig, SpeechConfig
from pipeline.synthesizer import Synthesizer
from pipeline.voices.catalogue import VoiceCatalogue
from serve.commands.say import LocalPipeline, open_pipeline
from serve.config.app_config import LimitsConfig
from serve.config.model_versions import ONLY, versions_of
from serve.http.services import Services
from serve.resilience.rollout import Rollout
from serve.speech.model_selection import ModelSelector
from tests.support.english_checkpoint import ENGLISH
from tests.support.fakes import Hasty, Speaker, ToneDecoder, make_services
from tests.support.live_server import Live, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CHINESE = "今天天气真不错，我们一起去公园散步吧。"
PATIENT = LimitsConfig(first_audio_timeout_s=300, chunk_timeout_s=300)  # the model may share the machine
ENGINE = {"slots": 4, "dtype": "float32"}


def selector(capabilities: Capabilities) -> ModelSelector:
    return ModelSelector(Rollout(versions_of(PipelineConfig(), {})), {ONLY: capabilities})


def around(synthesizer: Synthesizer, capabilities: Capabilities = ENGLISH) -> Services:
    """A services whose speech is the spine's."""
    services = make_services(Speaker(), PATIENT, models=selector(capabilities), stream=synthesizer.stream)
    return replace(services, text=synthesizer)


@pytest.fixture(scope="module")
def local(english_root: Path) -> Iterator[LocalPipeline]:
    opened = open_pipeline(PipelineConfig.model_validate({"checkpoint": str(english_root), "engine": ENGINE}))
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def live(local: LocalPipeline) -> Iterator[Live]:
    with serving(around(local.synthesizer)) as server:
        yield server


def post(live: Live, route: str, **body: object) -> requests.Response:
    return requests.post(f"{live.url}{route}", json=body, timeout=300)


def speak(live: Live, query: str = "", **body: object) -> requests.Response:
    return post(live, f"/v1/audio/speech{query}", **{"response_format": "pcm", "seed": 1, "stream": False, **body})


def seconds(reply: requests.Response) -> float:
    assert reply.status_code == 200, reply.text
    return len(reply.content) / 2 / 24_000


def refusal(reply: requests.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


# Text.


@pytest.mark.parametrize("route", ["/v1/audio/speech", "/v1/audio/speech/plan", "/v1/text/normalize"])
def test_a_text_in_an_unsupported_language_is_refused_with_the_supported_ones(live, route):
    reply = post(live, route, input=CHINESE)
    assert refusal(reply) == (400, "no_speakable_text")
    assert "speaks en:" in reply.json()["error"]["message"]


def test_what_is_unknown_is_counted_everywhere(live):
    text = "Hello 世界 there."
    reply = speak(live, input=text)
    assert reply.headers["X-Text-Warnings"] == "2; unknown_to_model=2"
    assert reply.content == speak(live, input="Hello there.").content
    for route in ("/v1/audio/speech/plan", "/v1/text/normalize"):
        shown = post(live, route, input=text).json()
        assert shown["warnings"] == [{"code": "unknown_to_model", "count": 2}]
        assert shown["dropped"] == [[6, 8]]
        assert refusal(post(live, f"{route}?strict=1", input=text)) == (400, "partly_unspeakable")
    assert refusal(speak(live, "?strict=1", input=text)) == (400, "partly_unspeakable")


def test_unsupported_tags_are_counted_and_pauses_have_an_effect(live):
    plain = speak(live, input="One two three.")
    tagged = speak(live, input="One [laugh] two [speed_9] three.", allow_control_tags=True)
    assert tagged.headers["X-Text-Warnings"] == "16; control_tag_not_taught=16"
    assert tagged.content == plain.content
    paused = speak(live, input="One [uv_break] two three.", allow_control_tags=True)
    assert "X-Text-Warnings" not in paused.headers
    assert paused.content != plain.content
    ssml = "<speak>One [laugh] two <emphasis>three</emphasis>.</speak>"
    shown = post(live, "/v1/text/normalize", input=ssml, input_type="ssml", allow_control_tags=True).json()
    assert shown["warnings"] == [{"code": "control_tag_not_taught", "count": 7}]
    assert shown["text"] == "One two [uv_break]three."


# Options.


@pytest.mark.parametrize("mode", ["stretch", "auto", "token"])
@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_a_speed_is_that_speed_in_every_mode(live, mode, speed):
    text = "Five one one, two five five."
    reply = speak(live, input=text, speed=speed, speed_mode=mode)
    assert seconds(reply) == pytest.approx(seconds(speak(live, input=text)) / speed, rel=0.01)
    assert reply.headers.get("X-Ignored-Fields") == (None if mode == "stretch" else "speed_mode")


@pytest.mark.parametrize(
    "field", [{"refine": True}, {"speed_mode": "token"}, {"speed_mode": "auto"}, {"language": "zh-CN"}, {"language": "yue"}]
)
def test_fields_without_effect_are_named_or_refused(live, field):
    (name,) = field
    reply = speak(live, input="One two.", **field)
    assert reply.headers["X-Ignored-Fields"] == name
    assert reply.content == speak(live, input="One two.").content
    refused = speak(live, "?strict=1", input="One two.", **field)
    assert refusal(refused) == (400, "unknown_field")
    assert refused.json()["error"]["param"] == name
    assert post(live, "/v1/audio/speech/plan", input="One two.", **field).json()["ignored_fields"] == [name]
    if name == "language":
        assert post(live, "/v1/text/normalize", input="One two.", **field).json()["ignored_fields"] == [name]


def test_a_text_without_a_refine_pass_is_returned_unchanged(live):
    shown = post(live, "/v1/text/refine", input="Hello there. I am here.", refine={"guard": "strict", "oral": 2}).json()
    assert shown["refined"] == "Hello there. I am here."
    assert shown["accepted"] is False
    assert shown["ignored_fields"] == ["refine"]
    assert {change["op"] for change in shown["diff"]} == {"equal"}
    assert refusal(post(live, "/v1/text/refine?strict=1", input="Hello there.")) == (400, "unknown_field")


def test_languages_are_listed(live):
    models = requests.get(f"{live.url}/v1/models", timeout=300).json()["data"]
    assert [card["languages"] for card in models] == [["en"]] * len(models)
    voices = requests.get(f"{live.url}/v1/audio/voices", timeout=300).json()
    assert voices["languages"] == ["en"]
    assert {card["id"]: card["languages"] for card in voices["voices"]} == {"default": ["en", "zh"], "calm": ["en"]}


# Audio that is too short to be its text.


def hasty(local: LocalPipeline, *, relents: bool = False) -> Services:
    """The demo's text, a model that stops at once, in its second take too unless it `relents`."""
    catalogue = VoiceCatalogue.load(None, 256)
    return around(Synthesizer(local.frontend, Hasty(relents=relents), ToneDecoder(), catalogue, SpeechConfig()))


def done_event(reply: requests.Response) -> dict[str, object]:
    return json.loads(reply.text.strip().splitlines()[-1].removeprefix("data: "))


def test_audio_too_short_for_its_text_is_rolled_again_and_reported(local, caplog):
    with serving(hasty(local)) as live:
        reply = speak(live, input="Hello there. It is a quiet day.")
        assert reply.headers["X-Text-Warnings"] == "2; rolled_again=1, too_short=1"
        done = done_event(speak(live, input="Hello 世 there.", stream=True, stream_format="sse"))
        assert done["type"] == "speech.audio.done"
        assert done["warnings"] == {"rolled_again": 1, "unknown_to_model": 1, "too_short": 1}
        with caplog.at_level("INFO"):
            headers = speak(live, input="Hello there.", stream=True).headers
            assert headers["X-Text-Warnings"] == "2; rolled_again=1, too_short=1", "it was known before any audio was sent"
            wait_until(lambda: "warnings=rolled_again:1,too_short:1" in caplog.text, 30.0)  # written behind the last byte


def test_a_second_take_is_the_same_streamed_and_buffered_and_every_time(local):
    with serving(hasty(local, relents=True)) as live:
        replies = [speak(live, input="Hello there. It is a quiet day.", stream=stream) for stream in (True, False, True)]
    assert {reply.headers["X-Text-Warnings"] for reply in replies} == {"1; rolled_again=1"}
    assert len({reply.content for reply in replies}) == 1


def test_audio_of_an_ordinary_length_is_not(live):
    for text in ("Hello there.", "I.", "Mississippi."):
        assert "X-Text-Warnings" not in speak(live, input=text).headers
    events = speak(live, input="Hello there.", stream=True, stream_format="sse").text
    assert json.loads(events.strip().splitlines()[-1].removeprefix("data: "))["warnings"] == {}
    assert np.any(np.frombuffer(speak(live, input="Hello there.").content, "<i2"))
