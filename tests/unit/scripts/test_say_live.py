"""Say live: what is piped in is spoken while it comes, and a refusal is an exit code and a sentence."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import wave
from contextlib import closing, suppress
from pathlib import Path
from subprocess import PIPE

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from scripts import say_live
from serve.config.app_config import PROJECT
from tests.support.door_process import CHUNKS, start_door
from tests.support.effort import examples
from tests.support.fakes import CHUNK, Speaker, close_to, make_services, pcm_of
from tests.support.live_server import serving
from tests.support.ports import free_port
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


class Cutting:
    """A way to a server that breaks after so many bytes of its answers, one number a connection; then it holds."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._port, self._cuts = port, cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                left = self._cuts[self.connections] if self.connections < len(self._cuts) else 1 << 40
                self.connections += 1
                threading.Thread(target=self._pass_on, args=(client, server, 1 << 40), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, left), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left > 0 and (data := source.recv(min(left, 65536))):
                target.sendall(data)
                left -= len(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


TEXT = "Hello there, how are you today? Then we go on with another sentence. And this one is the last of them."


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(cuts=st.lists(st.integers(200, 150_000), min_size=1, max_size=4))
def test_wherever_connections_are_lost_the_sound_is_whole(cuts: list[int]):
    speaker = Speaker(chunks=5)
    with (
        serving(make_services(speaker)) as live,
        closing(Cutting(live.port, cuts)) as way,
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(say_live, "RETRY_S", 0.01)
        path = Path(folder) / "said.wav"
        code = say_live.main([TEXT, "--url", f"http://127.0.0.1:{way.port}", "-o", str(path)])
        event(f"{way.connections} connections")
        if not path.exists() or code:
            assert way.connections == 1, "what was never connected is refused"
            return
        with wave.open(str(path)) as file:
            heard = file.readframes(file.getnframes())
    seeds = {request.text: set[int]() for request in speaker.requests}
    for request in speaker.requests:
        seeds[request.text].add(request.sampling.seed)
    assert "".join(seeds) == TEXT
    # A part that began where nobody heard of it begins anew, with another seed; what was heard was made with one alone.
    assert len(heard) == len(seeds) * 2 * 5 * CHUNK
    for part, found in enumerate(seeds.values()):
        piece = heard[part * 2 * 5 * CHUNK : (part + 1) * 2 * 5 * CHUNK]
        assert any(close_to(piece, pcm_of(seed)) for seed in found)


@pytest.mark.slow
def test_who_listens_hears_the_whole_although_the_server_is_killed():
    port = free_port()
    program = [sys.executable, "-c", "from scripts.cli.app import app; app()", "say", "--live", "--seed", "5"]
    door = start_door(port)
    with subprocess.Popen(
        [*program, TEXT, "--url", f"http://127.0.0.1:{port}", "-o", "-"], cwd=PROJECT, stdout=PIPE, stderr=PIPE
    ) as saying:
        assert saying.stdout is not None
        assert saying.stderr is not None
        heard = saying.stdout.read(3 * 2 * CHUNK)
        door.kill()
        door.wait()
        door = start_door(port)
        heard += saying.stdout.read()
        said = saying.stderr.read().decode().splitlines()
    door.kill()
    door.wait()
    whole = pcm_of(5, CHUNKS)
    assert len(heard) == 3 * 2 * len(whole)
    assert all(close_to(heard[part * 2 * len(whole) : (part + 1) * 2 * len(whole)], whole) for part in range(3))
    assert [line.split(" after")[0] for line in said] == ["the connection was lost; going on", "6.00 s of audio"]
