"""`stream_format: sse` on the wire, as LiveKit's plugin reads its lines and as the `openai` package hands them on."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

from tests.support.effort import examples
from tests.support.live_server import Live

TEXTS = st.text(st.sampled_from("ab 3.!\U0001f600中é\n"), min_size=1, max_size=60).map(lambda text: f"Hello{text}")


def events_in(lines: list[str]) -> list[dict[str, Any]]:
    """Reads as LiveKit's plugin does: only lines that begin so, each with a whole event, until the end or [DONE]."""
    data = [line[6:] for line in lines if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def check(live: Live, events: list[dict[str, Any]], **said: Any) -> None:
    """Checks events against the same text as a stream of audio and, for its usage, as a whole."""
    streamed, whole = live.speak(**said), live.speak(**said, stream=False)
    kinds = [event["type"] for event in events]
    assert kinds == (len(kinds) - 1) * ["speech.audio.delta"] + ["speech.audio.done"]
    assert [event["seq"] for event in events[:-1]] == list(range(len(events) - 1))
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == streamed.content
    characters, steps = (int(whole.headers[f"X-Usage-{name}"]) for name in ("Characters", "Audio-Tokens"))
    usage = {"input_tokens": characters, "output_tokens": steps, "total_tokens": characters + steps}
    assert events[-1]["usage"] == usage


@settings(max_examples=examples(25), deadline=None)
@given(text=TEXTS, container=st.sampled_from(["pcm", "mp3", "wav"]))
def test_every_line_is_one_that_clients_read(live: Live, text: str, container: str):
    said = {"input": text, "seed": 7, "response_format": container}
    reply = live.speak(**said, stream_format="sse")
    assert reply.headers["Content-Type"].split(";")[0] == "text/event-stream"
    lines = reply.content.decode().split("\n")
    names = [line[7:] for line in lines if line.startswith("event: ")]
    assert all(not line or line.startswith(("id: ", "event: ", "data: ")) for line in lines)
    events = events_in(lines)
    assert names == [event["type"] for event in events]
    check(live, events, **said)


@pytest.mark.slow  # the package takes seconds to load
def test_the_openai_package_hands_them_on(live: Live):
    client = OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    for model in ("gpt-4o-mini-tts", "chattts"):
        with client.audio.speech.with_streaming_response.create(
            input="Hello there.", model=model, voice="alloy", response_format="pcm", stream_format="sse", extra_body={"seed": 7}
        ) as reply:
            assert reply.headers["content-type"].split(";")[0] == "text/event-stream"
            check(live, events_in(list(reply.iter_lines())), seed=7)
