"""docs/twilio_bridge.py through a call, frame by frame in the form of Twilio's documentation: marks, a clear, a barge-in."""

import base64
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from pipeline.types import AudioChunk, SynthesisRequest
from serve.config.app_config import PROJECT
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import Live, serving
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

BRIDGE = PROJECT / "docs/twilio_bridge.py"
CALL = json.loads((PROJECT / "tests/data/twilio_call.json").read_text())
STREAM = CALL["start"]["streamSid"]
SAMPLES = 24_000  # of a Speaker, whatever rate it is asked for; a byte each
QUIET, LOUD = b"\xff" * 160, b"\x80" * 160


class Talker(Speaker):
    """Speaks one second of every text, and of one that begins with "Endless" until it is interrupted."""

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        self.requests.append(request)
        self.inner = Speaker(chunks=None, pause_s=0.01) if request.text.startswith("Endless") else Speaker()
        async for chunk in self.inner.stream(request):
            yield chunk


@pytest.fixture
def speaker() -> Talker:
    return Talker()


@pytest.fixture
def bridge(speaker: Talker, tmp_path: Path) -> Iterator[tuple[Live, str]]:
    port = free_port()
    with serving(make_services(speaker)) as live, (tmp_path / "log").open("w") as log:
        command = [sys.executable, str(BRIDGE), live.url.replace("http", "ws"), str(port)]
        with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process:
            try:
                yield live, f"ws://127.0.0.1:{port}"
            finally:
                process.kill()


def dialled(address: str, text: str) -> ClientConnection:
    """Twilio's end of a call, once the stream has started."""
    found: list[ClientConnection] = []

    def answers() -> bool:
        try:
            found.append(connect(address, max_size=None))
        except OSError:
            return False
        return True

    wait_until(answers, 60.0)
    start = json.loads(json.dumps(CALL["start"]))
    start["start"]["customParameters"] = {"text": text}
    for event in (CALL["connected"], start):
        found[0].send(json.dumps(event))
    return found[0]


def speaks(twilio: ClientConnection, frame: bytes, count: int) -> None:
    """The caller's audio: so many frames of 20 ms."""
    for _ in range(count):
        event = {**CALL["media"], "media": {**CALL["media"]["media"], "payload": base64.b64encode(frame).decode()}}
        twilio.send(json.dumps(event))


def heard(twilio: ClientConnection, until: str) -> tuple[bytes, dict[str, Any]]:
    """The audio before an event of that name, and the event."""
    audio = b""
    while True:
        event = json.loads(twilio.recv(timeout=60))
        assert event["streamSid"] == STREAM
        if event["event"] == until:
            return audio, event
        assert event["event"] == "media", event
        audio += base64.b64decode(event["media"]["payload"])


def test_a_text_is_played_with_a_mark_behind_each_part(bridge: tuple[Live, str], speaker: Talker):
    _, address = bridge
    with dialled(address, "Hello there.") as twilio:
        speaks(twilio, QUIET, 20)
        audio, mark = heard(twilio, "mark")
        assert len(audio) == SAMPLES
        assert speaker.requests[0].audio.sample_rate == 8000
        twilio.send(json.dumps({**CALL["mark"], "mark": mark["mark"]}))
        speaks(twilio, LOUD, 20)  # nothing is playing: nothing to interrupt
        twilio.send(json.dumps(CALL["stop"]))
        with pytest.raises(TimeoutError):
            twilio.recv(timeout=0.3)


def test_who_speaks_interrupts_and_the_model_is_free_at_once(bridge: tuple[Live, str], speaker: Talker):
    _, address = bridge
    with dialled(address, "Endless words.") as twilio:
        assert json.loads(twilio.recv(timeout=60))["event"] == "media"
        speaks(twilio, LOUD, 3)  # a click is no interruption
        speaks(twilio, QUIET, 5)
        assert json.loads(twilio.recv(timeout=60))["event"] == "media"
        speaks(twilio, LOUD, 5)
        heard(twilio, "clear")
        audio, mark = heard(twilio, "mark")
        assert len(audio) == SAMPLES, "the answer alone: nothing of what was interrupted"
        assert mark["mark"]["name"] == "1.0"
        assert [request.text for request in speaker.requests] == ["Endless words.", "Yes?"]
        twilio.send(json.dumps(CALL["stop"]))


def test_the_example_is_short():
    assert len(BRIDGE.read_text().splitlines()) < 80
