"""Say live: what is piped in is spoken while it comes, and a refusal is an exit code and a sentence."""

import os
import subprocess
import sys
import threading
import wave
from pathlib import Path

import pytest

from scripts import say_live
from serve.config.app_config import PROJECT
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.waiting import wait_until

FIRST, SECOND = "Hello there, how are you? Th", "en we go on.\n"


@pytest.fixture
def speaker():
    return Speaker(chunks=2)


@pytest.fixture
def live(speaker: Speaker):
    with serving(make_services(speaker)) as server:
        yield server


def test_what_is_piped_in_is_spoken_while_it_comes(live, speaker: Speaker, tmp_path: Path, monkeypatch, capsys):
    reader, writer = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reader))
    path = tmp_path / "said.wav"
    codes: list[int] = []
    saying = threading.Thread(target=lambda: codes.append(say_live.main(["--url", live.url, "-o", str(path), "--seed", "5"])))
    saying.start()
    os.write(writer, FIRST.encode())
    wait_until(lambda: speaker.closed == 1)
    assert speaker.requests[0].text == "Hello there, how are you? "
    os.write(writer, SECOND.encode())
    os.close(writer)
    saying.join(timeout=30)
    assert codes == [0]
    assert [request.text for request in speaker.requests[1:]] == ["Then we go on.\n"]
    assert {request.sampling.seed for request in speaker.requests} == {5}
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (24_000, 1, 4 * 4800)
    assert capsys.readouterr().err == "0.80 s of audio\n"


@pytest.mark.slow
def test_the_command_speaks_a_pipe(live, speaker: Speaker):
    command = [sys.executable, "-c", "from scripts.cli.app import app; app()", "say", "--live", "--url", live.url, "-o", "-"]
    done = subprocess.run(command, cwd=PROJECT, input=(FIRST + SECOND).encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr, len(done.stdout)) == (0, b"0.80 s of audio\n", 2 * 2 * 2 * 4800)
    assert [request.text for request in speaker.requests] == ["Hello there, how are you? ", "Then we go on.\n"]


def test_a_text_goes_to_stdout_as_samples(live, capfdbinary):
    assert say_live.main(["Hello there.", "--url", live.url.replace("http", "ws"), "-o", "-"]) == 0
    assert len(capfdbinary.readouterr().out) == 2 * 2 * 4800


def test_a_refusal_is_a_sentence(live, tmp_path: Path, capsys):
    path = str(tmp_path / "x.wav")
    assert say_live.main(["Hello.", "--url", live.url, "-o", path, "--voice", "nobody"]) == 1
    assert "voice" in capsys.readouterr().err
    assert say_live.main(["Hello.", "--url", "http://127.0.0.1:9", "-o", path]) == 1
    assert "http://127.0.0.1:9: " in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        say_live.main(["Hello.", "-o", "x.mp3"])


def test_characters_that_are_cut_in_two_bytes_join():
    reader, writer = os.pipe()
    os.write(writer, "é".encode()[:1])
    found = say_live.pieces(reader)
    assert next(found) == ""
    os.write(writer, "é".encode()[1:] + b"\xff")
    os.close(writer)
    assert list(found) == ["é\ufffd", ""]
    os.close(reader)
