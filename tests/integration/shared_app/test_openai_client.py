"""OpenAI's own client, unmodified."""

import io

import av
import openai
import pytest

from tests.support.cluster import LONG_SPEECH, Cluster
from tests.support.waiting import wait_until

VOICE = "alloy"


@pytest.fixture
def client(cluster: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=cluster.url("/v1"), api_key="none", max_retries=0)


@pytest.mark.parametrize("container", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format(client: openai.OpenAI, container: str):
    def speak(container: str) -> bytes:
        body = {"model": "tts-1", "voice": VOICE, "input": "Hello there.", "response_format": container}
        return client.audio.speech.create(**body, extra_body={"seed": 5}).content

    spoken_s = len(speak("pcm")) / 2 / 24_000
    assert spoken_s > 0.5
    if container == "pcm":
        return
    with av.open(io.BytesIO(speak(container))) as file:
        decoded_s = sum(frame.samples / frame.rate for frame in file.decode(audio=0))
    assert decoded_s == pytest.approx(spoken_s, abs=0.1), "nothing is lost but a codec's padding is added"


def test_streaming(client: openai.OpenAI):
    pieces = []
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice=VOICE,
        input="Hello there. How are you today?",
        response_format="pcm",
        speed=1.2,
        extra_body={"seed": 5},
    ) as reply:
        assert reply.headers["content-type"] == "audio/pcm; rate=24000; channels=1"
        pieces = list(reply.iter_bytes())
    assert len(pieces) > 1


def test_models(client: openai.OpenAI):
    assert "tts-1" in {model.id for model in client.models.list()}
    assert client.models.retrieve("tts-1").id == "tts-1"


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"voice": "nobody"}, openai.BadRequestError, "voice"),
        ({"speed": 9.0}, openai.BadRequestError, "speed"),
        ({"model": "tts-99"}, openai.NotFoundError, "model"),
        ({"input": "x" * 5000}, openai.APIStatusError, "input"),
    ],
)
def test_mistakes_become_its_exceptions(client: openai.OpenAI, fields: dict, kind: type, param: str):
    with pytest.raises(kind) as raised:
        client.audio.speech.create(**{"model": "tts-1", "voice": VOICE, "input": "Hello.", **fields})
    assert raised.value.body["param"] == param
    assert raised.value.body["request_id"]


def test_a_full_house_becomes_its_rate_limit_error(cluster: Cluster, client: openai.OpenAI):
    def speak_until_refused() -> None:
        for _ in range(50):
            client.audio.speech.create(model="tts-1", voice=VOICE, input="Hello.")

    waiting = [cluster.connect(LONG_SPEECH) for _ in range(cluster.health()["admission"]["capacity"])]
    try:
        wait_until(lambda: cluster.health()["acoustic"][0]["slots_used"] == 8, 5.0)
        with pytest.raises(openai.RateLimitError) as raised:
            speak_until_refused()
        assert int(raised.value.response.headers["Retry-After"]) >= 1
        assert raised.value.body["code"] == "overloaded"
    finally:
        for connection in waiting:
            connection.close()
