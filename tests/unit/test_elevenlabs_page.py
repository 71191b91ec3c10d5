"""The page about ElevenLabs' protocol: its example runs, and its tables name what there is."""

import re
from pathlib import Path

import pytest

from serve.http.elevenlabs.dialogue import DialogueBody, Turn
from serve.http.elevenlabs.errors import NAMES
from serve.http.elevenlabs.frames import DialogueFrame, Frame, Line
from serve.http.elevenlabs.translation import HttpQuery, TextSocketQuery, TextToSpeechBody
from serve.http.routes import elevenlabs, elevenlabs_account, elevenlabs_dialogue, elevenlabs_voices
from serve.http.routes.elevenlabs_voices import Labels
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.pages import PAGES, section

PAGE = "docs/elevenlabs.md"
EXAMPLE, _ = re.findall(r"```python\n(.*?)```", PAGES[PAGE], re.DOTALL)


@pytest.mark.slow
def test_the_example_writes_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with serving(make_services(Speaker())) as live:
        exec(compile(EXAMPLE.replace("localhost:8000", f"127.0.0.1:{live.port}"), PAGE, "exec"), {})
        spoken = live.speak(response_format="mp3", sample_rate=44_100, bitrate=128)
    assert len((tmp_path / "hello.mp3").read_bytes()) > len(spoken.content) // 2


def test_every_route_is_named():
    routers = (elevenlabs.router, elevenlabs_dialogue.router, elevenlabs_voices.router, elevenlabs_account.router)
    paths = {route.path.replace("{name}", "<voice>") for router in routers for route in router.routes}
    assert len(paths) == 22
    named = section(PAGE, "Routes")
    assert [path for path in paths if f"{path}`" not in named] == []


def test_every_field_and_every_name_of_an_error_is_explained():
    for kind in (TextToSpeechBody, HttpQuery, TextSocketQuery, Frame, DialogueFrame, Line, DialogueBody, Turn, Labels):
        for field in kind.model_fields:
            assert re.search(rf"\b{field}\b", PAGES[PAGE]), field
    rows = section(PAGE, "Errors")
    for code, (status, name) in NAMES.items():
        assert re.search(rf"`{code}`.*\| `{name}` \| {status} \|", rows), code
