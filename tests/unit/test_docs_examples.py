"""What the pages show works: commands, the fields of other programs, the examples of clients, the two programs in docs/."""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import ray.scripts.scripts
import ray.serve.scripts
import requests
from openai import OpenAI
from packaging.requirements import Requirement
from websockets.sync.client import ClientConnection, connect

from pipeline.store.open import open_store
from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.authentication import Authenticator
from serve.commands.commands import COMMANDS
from serve.http.services import Services
from tests.support.fakes import CHUNK, Speaker, close_to, make_services, pcm_of, shipped_library
from tests.support.guarded import add, ring_of
from tests.support.live_server import Live, serving
from tests.support.pages import PAGES, ROOT, commands, section
from tests.support.ports import free_port
from tests.support.service_process import CHUNKS, say_live, start_service
from tests.support.voice_routes import services_with
from tests.support.waiting import wait_until

# Commands: each is understood by the tool it calls, and what can run here runs.

CLICK = {"ray": ray.scripts.scripts.cli, "serve": ray.serve.scripts.cli}
SCRIPTS = commands("chattts-serve", "python -m")
RAYS = commands("ray", "serve")

# Runs modules of ours, each up to where its own parser has taken the words: JSON lines in, what was wrong with each out. None
# that parses nothing writes a file of the checkout.
PARSE = """
import argparse, contextlib, io, json, os, runpy, sys

parse = argparse.ArgumentParser.parse_args

class Taken(BaseException):
    pass

def parse_and_end(self, *words):
    parse(self, *words)
    raise Taken

def refuse_writing(event, args):
    if event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR):
        if args[0].startswith(os.getcwd()) and "__pycache__" not in args[0]:
            raise PermissionError(f"it has parsed nothing, and writes {args[0]}")

argparse.ArgumentParser.parse_args = parse_and_end
sys.addaudithook(refuse_writing)
for line in sys.stdin:
    module, *words = json.loads(line)
    sys.argv = [module, *words]
    wrong = "it has parsed nothing"
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except Taken:
            wrong = ""
        except SystemExit:
            wrong = errors.getvalue()
        except PermissionError as error:
            wrong = str(error)
    print("taken", json.dumps(wrong), flush=True)
"""


def module_and_words(line: str) -> list[str]:
    """The module a command line of ours runs, and the words its parser gets."""
    tool, *words = shlex.split(line)
    if tool == "python":
        return words[1:]
    matches = [command for command in COMMANDS if words[: len(command.name.split())] == command.name.split()]
    assert len(matches) == 1, f"{line}: no such command"
    return [matches[0].module, *words[len(matches[0].name.split()) :]]


def run(module: str, *words: str, home: Path) -> str:
    """What a script of ours prints."""
    environment = {**os.environ, "CHATTTS_HOME": str(home)}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def wrong_in(lines: list[str]) -> dict[str, str]:
    """line -> what its script's own parser says against it; empty: nothing."""
    text = "".join(json.dumps(module_and_words(line)) + "\n" for line in lines)
    command = [sys.executable, "-c", PARSE]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line.removeprefix("taken ")) for line in done.stdout.splitlines() if line.startswith("taken ")]
    return dict(zip(lines, answers, strict=True))


@pytest.mark.slow
def test_scripts_of_ours_take_their_words():
    own_options = ("chattts-serve --help", "chattts-serve --install-completion")
    wrong_words = "chattts-serve drain configs/dev.yaml --grade 3"
    errors = wrong_in([*(line for line in SCRIPTS if line not in own_options), wrong_words])
    assert "unrecognized arguments: --grade" in errors.pop(wrong_words)
    assert len(errors) >= 20
    assert {line: wrong for line, wrong in errors.items() if wrong} == {}


@pytest.mark.slow
def test_every_script_parses_its_words_before_it_works():
    paths = [path for path in (ROOT / "scripts").rglob("*.py") if '\nif __name__ == "__main__":' in path.read_text()]
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(paths)]
    errors = wrong_in([f"python -m {module} --grade 3" for module in modules])
    assert len(errors) >= 20
    assert {line: wrong for line, wrong in errors.items() if "usage: " not in wrong} == {}


def parse_as_ray_does(line: str) -> None:
    """Parsed by click, called by nobody."""
    tool, *words = shlex.split(line)
    group = CLICK[tool]
    with group.make_context(tool, list(words), resilient_parsing=False) as context:
        name, command, rest = group.resolve_command(context, words)
        assert command is not None
        if rest:
            with command.make_context(name, rest, parent=context):
                pass


def test_rays_own_commands_take_their_words():
    assert {line.split()[1] for line in RAYS} >= {"start", "get-auth-token", "deploy", "shutdown", "status", "run"}
    for line in RAYS:
        parse_as_ray_does(line)
    for wrong in ("ray start --heat --port 6379", "serve redeploy x.yaml"):
        with pytest.raises(click.exceptions.UsageError):
            parse_as_ray_does(wrong)


def test_what_pip_is_asked_for_is_offered():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = commands("pip install")
    assert lines
    for line in lines:
        requirement = Requirement(re.sub(r"^\.", project["name"], shlex.split(line)[-1]))  # `.` is the checkout
        assert requirement.name == project["name"], line
        assert requirement.extras <= set(project["optional-dependencies"]), line


@pytest.mark.slow
def test_keys_are_made_shown_and_revoked_as_written(tmp_path: Path):
    page = next(page for page, text in PAGES.items() if re.search(r"^##+ Keys$", text, re.MULTILINE))
    lines = re.findall(r"^    (chattts-serve .*?)(?:\s+#.*)?$", section(page, "Keys"), re.MULTILINE)
    adding, listing, revoking = map(module_and_words, lines)
    key = run(*adding, home=tmp_path).strip()
    (shown_key,) = run(*listing, home=tmp_path).splitlines()
    key_id = shown_key.split()[0]
    assert key_id in key
    run(*(key_id if re.fullmatch(r"[a-z0-9]{10}", word) else word for word in revoking), home=tmp_path)
    assert key_id not in run(*listing, home=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in SCRIPTS if "config check " in line or "config show " in line])
def test_configurations_are_checked_and_shown(line: str, tmp_path: Path):
    run(*module_and_words(line), home=tmp_path)


# docs/clients.md: what the programs send that are filled in as the page shows, to a server that asks for keys.

PAGE = "docs/clients.md"
HERE = "http://localhost:8000"
TEXT = "Hello there."


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, str]]:
    url = str(Path(tmp_path_factory.mktemp("hub")) / "store.sqlite")
    store = open_store(url)
    key, _ = add(store)
    services = services_with(url)
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store), has_open_lists=True))
    with serving(services) as live:
        yield live, key


def filled_in(title: str, field: str, live: Live) -> str:
    """The value that the page gives for a field, for this server."""
    (row,) = [line for line in section(PAGE, title).splitlines() if f"`{field}`" in line or line.startswith(f"| {field} |")]
    return re.findall(r"`([^`]+)`", row)[-1].replace(HERE, live.url)


def post(url: str, key: str, **fields: Any) -> requests.Response:
    headers = {"Authorization": f"Bearer {key}", "X-OpenWebUI-User-Name": "anna"}
    return requests.post(url, json={"input": TEXT, **fields}, headers=headers, timeout=60)


def test_open_webui(hub):
    live, key = hub
    base = filled_in("Open WebUI", "AUDIO_TTS_OPENAI_API_BASE_URL", live)
    models = requests.get(f"{base}/audio/models", timeout=60).json().get("models", [])
    voices = requests.get(f"{base}/audio/voices", timeout=60).json().get("voices", [])
    model = filled_in("Open WebUI", "AUDIO_TTS_MODEL", live)
    assert model in [entry["id"] for entry in models]
    assert {voice["id"]: voice["name"] for voice in voices}["default"]
    reply = post(f"{base}/audio/speech", key, voice=filled_in("Open WebUI", "AUDIO_TTS_VOICE", live), model=model)
    assert reply.headers["Content-Type"] == "audio/mpeg", reply.text
    refused = requests.post(f"{base}/audio/speech", json={"input": TEXT, "voice": "nobody"}, timeout=60)
    assert refused.json()["error"]["message"], "it shows this to its user"


def test_sillytavern(hub):
    live, key = hub
    url, model = filled_in("SillyTavern", "Provider Endpoint", live), filled_in("SillyTavern", "Model", live)
    for voice in filled_in("SillyTavern", "Available Voices (comma separated)", live).split(","):
        reply = post(url, key, model=model, voice=voice, response_format="mp3", speed=1)
        assert reply.headers["Content-Type"] == "audio/mpeg", reply.text


@pytest.mark.parametrize("kind", ["TTS_OPEN_AI_COMPATIBLE", "TTS_KOKORO"])
def test_anythingllm(hub, kind):
    live, key = hub
    kokoro = kind == "TTS_KOKORO"
    rows = dict(re.findall(r"`(TTS_KOKORO_\w+)` is `([^`]+)`", section(PAGE, "AnythingLLM"))) if kokoro else {}
    values = {
        name: rows[f"{kind}_{name}"].replace(HERE, live.url) if kokoro else filled_in("AnythingLLM", f"{kind}_{name}", live)
        for name in ("ENDPOINT", "VOICE_MODEL")
    }
    model: Any = "kokoro" if kokoro else filled_in("AnythingLLM", f"{kind}_MODEL", live)
    client = OpenAI(base_url=values["ENDPOINT"], api_key=key, max_retries=0)
    spoken = client.audio.speech.create(model=model, voice=values["VOICE_MODEL"], input=TEXT)
    assert len(spoken.content) > 1000


def test_lists_are_open_where_the_operator_opens_them_and_nothing_else_is(hub, tmp_path: Path):
    live, _ = hub
    assert requests.get(f"{live.url}/v1/", timeout=60).json()["name"], "LiveKit opens its connection without a key"
    for path in ("/v1/models", "/v1/audio/voices/alloy", "/v1/voices", "/v1/user"):
        assert requests.get(f"{live.url}{path}", timeout=60).status_code == 401
    url = str(tmp_path / "store.sqlite")
    store = open_store(url)
    add(store)
    services = services_with(url)
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))
    with serving(services) as closed:
        for path in ("/v1/audio/voices", "/v1/audio/models"):
            assert requests.get(f"{closed.url}{path}", timeout=60).json()["error"]["code"] == "missing_api_key"


def test_mixtures_are_written_as_the_page_writes_them(hub):
    live, key = hub
    url = f"{live.url}/v1/audio/speech"
    for mixture, blend in (("nova+onyx", "blend:nova(1)+onyx(1)"), ("nova(2)+onyx(1)", "blend:nova(2)+onyx(1)")):
        replies = [post(url, key, voice=voice) for voice in (mixture, blend)]
        assert [reply.status_code for reply in replies] == [200, 200]
        assert replies[0].headers["X-Voice-Id"] == replies[1].headers["X-Voice-Id"]
    for wrong in ("nova+", "nova+nobody", "nova(0)+onyx", "nova - onyx + nova"):
        assert post(url, key, voice=wrong).status_code == 400


# The clients in Python of the pages.

(CONVERSATION,) = re.findall(r"```python\n(.*?)```", section("docs/api.md", "Conversations"), re.DOTALL)
ELEVENLABS, _ = re.findall(r"```python\n(.*?)```", PAGES["docs/elevenlabs.md"], re.DOTALL)


def shipped_service(speaker: Speaker) -> Services:
    """A service that knows the voices its readers' service knows."""
    return make_services(speaker, voice_id=shipped_library().canonical)


def run_example(code: str, live: Live) -> None:
    exec(compile(code.replace("localhost:8000", f"127.0.0.1:{live.port}"), "example", "exec"), {})


def test_the_conversation_of_the_page_writes_what_it_hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    speaker = Speaker(chunks=2)
    monkeypatch.chdir(tmp_path)
    with serving(shipped_service(speaker)) as live:
        run_example(CONVERSATION, live)
    assert [request.text for request in speaker.requests] == [
        "Hello there, how are you today? ",
        "This is spoken while it is written.",
    ]
    assert {request.voice for request in speaker.requests} == {"voice-287"}, "whose other name is alloy"
    assert (tmp_path / "hello.pcm").stat().st_size == 2 * 2 * 4800 * 2
    assert len(CONVERSATION.splitlines()) <= 20


@pytest.mark.slow
def test_the_example_of_elevenlabs_writes_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with serving(shipped_service(Speaker())) as live:
        run_example(ELEVENLABS, live)
        spoken = live.speak(response_format="mp3", sample_rate=44_100, bitrate=128)
    assert len((tmp_path / "hello.mp3").read_bytes()) > len(spoken.content) // 2


# docs/say_live.py.

LONG = "Hello there, how are you today? Then we go on with another sentence. And this one is the last of them."


@pytest.mark.slow
def test_say_live_goes_on_after_the_server_is_killed():
    port = free_port()
    process = start_service(port)
    with say_live(f"http://127.0.0.1:{port}", LONG) as saying:
        audio = saying.stdout.read(3 * 2 * CHUNK)
        process.kill()
        process.wait()
        process = start_service(port)
        audio += saying.stdout.read()
        assert saying.wait(60) == 0, saying.stderr.read()
    process.kill()
    process.wait()
    whole = pcm_of(5, CHUNKS)
    assert len(audio) == 3 * 2 * len(whole)
    assert all(close_to(audio[part * 2 * len(whole) : (part + 1) * 2 * len(whole)], whole) for part in range(3))


# docs/twilio_bridge.py through a call, frame by frame in the form of Twilio's documentation: marks, a clear, a barge-in.

BRIDGE = ROOT / "docs/twilio_bridge.py"
CALL = json.loads((ROOT / "tests/data/twilio_call.json").read_text())
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
    calls: list[ClientConnection] = []

    def answers() -> bool:
        try:
            calls.append(connect(address, max_size=None))
        except OSError:
            return False
        return True

    wait_until(answers, 60.0)
    start = json.loads(json.dumps(CALL["start"]))
    start["start"]["customParameters"] = {"text": text}
    for event in (CALL["connected"], start):
        calls[0].send(json.dumps(event))
    return calls[0]


def speaks(twilio: ClientConnection, frame: bytes, count: int) -> None:
    """The caller's audio: so many frames of 20 ms."""
    for _ in range(count):
        event = {**CALL["media"], "media": {**CALL["media"]["media"], "payload": base64.b64encode(frame).decode()}}
        twilio.send(json.dumps(event))


def audio_until(twilio: ClientConnection, name: str) -> tuple[bytes, dict[str, Any]]:
    """The audio before an event of that name, and the event."""
    audio = b""
    while True:
        event = json.loads(twilio.recv(timeout=60))
        assert event["streamSid"] == STREAM
        if event["event"] == name:
            return audio, event
        assert event["event"] == "media", event
        audio += base64.b64decode(event["media"]["payload"])


@pytest.mark.slow
def test_a_text_is_played_with_a_mark_behind_each_part(bridge: tuple[Live, str], speaker: Talker):
    _, address = bridge
    with dialled(address, "Hello there.") as twilio:
        speaks(twilio, QUIET, 20)
        audio, mark = audio_until(twilio, "mark")
        assert len(audio) == SAMPLES
        assert speaker.requests[0].audio.sample_rate == 8000
        twilio.send(json.dumps({**CALL["mark"], "mark": mark["mark"]}))
        speaks(twilio, LOUD, 20)  # nothing is playing: nothing to interrupt
        twilio.send(json.dumps(CALL["stop"]))
        with pytest.raises(TimeoutError):
            twilio.recv(timeout=0.3)


@pytest.mark.slow
def test_a_barge_in_interrupts_and_frees_the_model(bridge: tuple[Live, str], speaker: Talker):
    _, address = bridge
    with dialled(address, "Endless words.") as twilio:
        assert json.loads(twilio.recv(timeout=60))["event"] == "media"
        speaks(twilio, LOUD, 3)  # a click is no interruption
        speaks(twilio, QUIET, 5)
        assert json.loads(twilio.recv(timeout=60))["event"] == "media"
        speaks(twilio, LOUD, 5)
        audio_until(twilio, "clear")
        audio, mark = audio_until(twilio, "mark")
        assert len(audio) == SAMPLES, "the answer alone: nothing of what was interrupted"
        assert mark["mark"]["name"] == "1.0"
        assert [request.text for request in speaker.requests] == ["Endless words.", "Yes?"]
        twilio.send(json.dumps(CALL["stop"]))
    assert len(BRIDGE.read_text().splitlines()) < 80
