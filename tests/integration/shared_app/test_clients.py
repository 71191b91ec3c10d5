"""Clients of the service: the page, the load tool, the pages' examples, a conversation, OpenAI's client."""

import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import openai
import pytest
from websockets.sync.client import ClientConnection, connect

from serve.config.app_config import PROJECT
from tests.support.browser import Page, chromium
from tests.support.pages import PAGES, code_blocks, section
from tests.support.service import FLAT, LONG, LONG_SPEECH, Service
from tests.support.services import needed_program
from tests.support.studio import ERROR, FINISHED, FIRST_TEXT, PLAYED, heard, sounding, unfold, visit, work, write
from tests.support.waiting import wait_until

# The page on the running service: it speaks, and says which key its status needs.


@pytest.mark.slow
def test_the_page_speaks_and_says_which_key_shows_the_state_of_the_service(service: Service):
    async def see(page: Page) -> None:
        await unfold(page)
        await write(page, "#seed", "4")
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        samples.append(await heard(page))
        await work(page, "status")
        await page.until(f"{ERROR}.includes('chattts-serve keys add')")
        assert await page.run("document.querySelector('.tiles') === null")

    samples: list[np.ndarray] = []
    with chromium() as browser:
        visit(browser, service.url(""), see, hears=True)
    assert np.array_equal(samples[0], sounding(service.speak(input=FIRST_TEXT, seed=4, response_format="pcm").content))


# The benchmarks against a server they did not start, and against the package with nothing but processes of their own.


def bench(folder: Path, *arguments: str) -> list[dict]:
    """The JSON lines of a run."""
    command = [sys.executable, "-m", "scripts.bench", *arguments, "--quick", "--repeats", "1", "--results", str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.nightly
def test_any_speech_server_is_measured_by_its_address(service: Service, tmp_path: Path):
    streams, crowd = bench(tmp_path, "b2", "b3", "--url", service.url())
    figures = streams["systems"]["url"]
    assert 0 < figures["ttfb_p50_s"]["median"] <= figures["audible_p50_s"]["median"]
    assert crowd["systems"]["url"]["8"]["answers"]["median"] >= 16
    assert crowd["rates_at_crowd"]["url"]["median"] > 0
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
def test_one_request_beside_the_package(tmp_path: Path):
    (result,) = bench(tmp_path, "b1", "--checkpoint", "small-random", "--threads", "1")
    ratio = result["judged"]["rtf_one_request"]
    assert np.isfinite(ratio["median"])
    for rows in ("decode_1", "decode_8"):
        assert 0 < result[rows]["memory_bandwidth"]["fraction_of_copy_bandwidth"] < 1
        assert result[rows]["step_ms"]["in_process"]["median"] > 0
    assert 0 < result["vocoder"]["core_s_per_audio_s"]["in_process"]["median"] < 100


# Every curl example of these pages, run against the service as it is written there.

PLACES = (
    ("docs/quickstart.md", None),
    ("docs/api.md", None),
    ("docs/text.md", None),
    ("docs/audio.md", None),
    ("docs/voices.md", None),
    ("docs/operations.md", "Keys"),
    ("docs/reliability.md", None),
)
"""page, section; None: the whole page"""
QUIET = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }\n'


def examples(page: str, title: str | None) -> list[str]:
    """The blocks with a curl in them, other commands left out."""
    text = PAGES[page] if title is None else section(page, title)
    blocks = [re.findall(r"^curl(?:.*\\\n)*.*$", block, re.MULTILINE) for block in code_blocks(text)]
    return ["\n".join(block) for block in blocks if block]


EXAMPLES = [(page, block) for page, title in PLACES for block in examples(page, title)]


def test_there_are_examples():
    assert sum(page == "docs/text.md" for page, _ in EXAMPLES) >= 4
    assert {page for page, _ in EXAMPLES} == {page for page, _ in PLACES}


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=[f"{Path(page).stem}-{i}" for i, (page, _) in enumerate(EXAMPLES)])
def test_examples_do_what_they_show(service: Service, tmp_path: Path, page: str, block: str):
    needed_program("curl", "curl")
    if "@me.wav" in block:
        flite = needed_program("flite", "flite")
        text = "Good morning. This is the voice that I would like to hear from now on."
        subprocess.run([flite, "-voice", "slt", "-t", text, str(tmp_path / "me.wav")], check=True)
    script = "KEY=ck-nobodys\n" + QUIET + block.replace("localhost:8000", f"127.0.0.1:{service.port}")
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    for name in re.findall(r"-o (\S+)", block):
        assert (tmp_path / name).stat().st_size > 100, f"{name} has no sound in it"


# Conversations: the bytes of HTTP, and slots that an interruption or a client that leaves frees.

SPEECH = {"response_format": "pcm", "seed": 5, "cache": "no-store"}
SENTENCES = ("This is the first of two sentences. ", "And this is the second one.")


def opened(service: Service) -> ClientConnection:
    return connect(service.url("/v1/audio/conversation").replace("http", "ws"))


def say(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def heard_until(socket: ClientConnection, kind: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != kind:
        events.append(json.loads(socket.recv(timeout=60)))
        assert events[-1]["type"] != "error", events[-1]
    return events


@pytest.mark.on_ray
@pytest.mark.parametrize("latency", ["exact", "low"])
def test_words_as_they_are_written_have_the_bytes_of_http(service: Service, latency: str):
    speech = SPEECH | {"latency": latency}
    with opened(service) as socket:
        say(socket, "open", sentences=True, speech=speech)
        for piece in "".join(SENTENCES).split(" "):
            say(socket, "text", text=f"{piece} " if piece != "one." else piece)
        say(socket, "close")
        events = heard_until(socket, "closed")
        audio = b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "audio")
        assert audio == b"".join(service.speak(input=sentence, latency=latency).content for sentence in SENTENCES)
        say(socket, "open", speech=speech)
        say(socket, "text", text="".join(SENTENCES))
        say(socket, "close")
        whole = b"".join(
            base64.b64decode(event["audio"]) for event in heard_until(socket, "closed") if event["type"] == "audio"
        )
    assert whole == service.speak(input="".join(SENTENCES), latency=latency).content


def test_a_part_is_read_as_the_rest_of_its_line_and_a_tick_alone_keeps_nothing_back(service: Service):
    parts = (
        "Press the ` key of the machine now. ",
        "All of us were tired and hungry by then. ",  # with it, the line is so long that the next word had no room in it
        "We took the red car\nDown to the harbour we went.",
    )
    text = "".join(parts)
    with opened(service) as socket:
        say(socket, "open", sentences=True, speech=SPEECH)
        for place in range(0, len(text), 7):
            say(socket, "text", text=text[place : place + 7])
        say(socket, "close")
        events = heard_until(socket, "closed")
    assert [text[slice(*event["characters"])] for event in events if event["type"] == "started"] == list(parts)
    audio = b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "audio" and event["part"] == 2)
    assert audio == service.speak(input=parts[2].replace("\n", " ")).content != service.speak(input=parts[2]).content


@pytest.mark.on_ray
def test_an_interruption_and_a_client_that_leaves_free_the_slots(service: Service):
    for leaves in (False, True):
        with opened(service) as socket:
            say(socket, "open", speech={**SPEECH, **FLAT})
            say(socket, "text", text=LONG)
            say(socket, "flush")
            heard_until(socket, "audio")
            assert service.in_flight() == 1
            if not leaves:
                say(socket, "cancel", played_ms=20)
                cancelled = heard_until(socket, "cancelled")[-1]
                assert cancelled["heard"]["ms"] == 20
                assert cancelled["heard"]["unheard_steps"] > 0
                wait_until(lambda: service.in_flight() == service.slots_used() == 0, 20.0)
                say(socket, "open")
                assert heard_until(socket, "opened")
        wait_until(lambda: service.in_flight() == service.slots_used() == 0, 20.0)


# OpenAI's own client, unmodified.

VOICE = "alloy"


@pytest.fixture
def client(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=service.url("/v1"), api_key="none", max_retries=0)


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


@pytest.mark.on_ray
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


def test_a_full_house_becomes_its_rate_limit_error(service: Service, client: openai.OpenAI):
    def speak_until_refused() -> None:
        for _ in range(50):
            client.audio.speech.create(model="tts-1", voice=VOICE, input="Hello.")

    waiting = [service.connect(LONG_SPEECH) for _ in range(service.health()["admission"]["capacity"])]
    try:
        wait_until(lambda: service.health()["acoustic"][0]["slots_used"] == 8, 30.0)
        with pytest.raises(openai.RateLimitError) as raised:
            speak_until_refused()
        assert int(raised.value.response.headers["Retry-After"]) >= 1
        assert raised.value.body["code"] in ("overloaded", "deadline_unmeetable"), "as fast as this machine is"
    finally:
        for connection in waiting:
            connection.close()
