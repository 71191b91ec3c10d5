"""`make serve` as a newcomer types it: on Serve's fast data path, HAProxy in front, back-pressure to the end."""

import asyncio
import base64
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from serve.commands.launch.announce import gcs_address, own_listeners
from serve.config.app_config import PROJECT
from tests.support import attacker
from tests.support.network import another_machine
from tests.support.recovery import recovered
from tests.support.service import FLAT, is_idle
from tests.support.services import needed_program
from tests.support.started import HAPROXY_PORTS, Started, nothing_is_left, started
from tests.support.waiting import wait_until

STALL_S = 3.0
SENTENCE = "Many words follow one another here, and none of them is the last one yet. "
# Long enough to be under way whenever somebody looks: what a reader does not take yet is decoded ahead all the same.
LONG = {"input": SENTENCE * 200, "response_format": "pcm", "seed": 1, "cache": "no-store", **FLAT}
CHANGES = {
    "checkpoint: demo": "checkpoint: small-random",  # ends no sequence early; words are test_words.py's
    "limits: {": f"limits: {{max_text_chars: 100000, stall_timeout_s: {STALL_S}, ",
}
# An office: a proxy nobody can pass, and a cluster that is gone.
OFFICE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
OFFICE |= {"RAY_ADDRESS": "192.0.2.77:6379"}


class Service(Started):
    """A service of serve.commands.launch.start, and what clients do with it."""

    def speak(self, **fields: object) -> requests.Response:
        body = {"input": "Hello there.", "response_format": "pcm", "seed": 5, "cache": "no-store"} | fields
        return requests.post(f"{self.url}/v1/audio/speech", json=body, timeout=60)

    def health(self) -> dict[str, Any]:
        return requests.get(f"{self.url}/health", timeout=10).json()

    def in_flight(self) -> int:
        return self.health()["admission"]["in_flight"]

    def is_idle(self) -> bool:
        return is_idle(self.health())


@pytest.fixture(scope="module")
def service(home: Path, folder: Path) -> Iterator[Service]:
    with started(home=home, folder=folder, changes=CHANGES, **OFFICE) as begun:
        begun.wait_until_ready()
        yield Service(**vars(begun))


def test_a_dozen_lines_say_what_a_newcomer_needs_and_the_log_has_the_rest(service: Service, home: Path):
    printed, log = service.log.read_text(), (home / f"logs/{service.port}.log").read_text()
    assert f"Page:  {service.url}/" in printed
    assert f"Hear:  curl {service.url}/v1/audio/speech" in printed
    assert f"Log:   {home}/logs/{service.port}.log" in printed
    assert len(printed.strip().splitlines()) <= 12
    assert "\x1b" not in printed + log
    assert "haproxy" in log.lower(), "the fast data path is on"


def test_the_announced_line_works_in_a_shell_and_ffmpeg_plays_it(service: Service, tmp_path: Path):
    (line,) = [line for line in service.output().splitlines() if "Hear:" in line]
    subprocess.run(line.split("Hear:")[1], shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    sound = tmp_path / "hello.wav"
    assert sound.stat().st_size > 10_000
    ffmpeg = needed_program("ffmpeg", "ffmpeg")
    played = subprocess.run([ffmpeg, "-v", "error", "-i", sound, "-f", "null", "-"], capture_output=True, text=True)
    assert (played.returncode, played.stderr) == (0, "")


def test_streamed_audio_equals_buffered_audio(service: Service):
    streamed, buffered = service.speak(seed=7, stream=True), service.speak(seed=7, stream=False)
    assert streamed.headers["Transfer-Encoding"] == "chunked"
    assert int(buffered.headers["Content-Length"]) == len(buffered.content)
    assert streamed.content == buffered.content


def conversation(service: Service) -> contextlib.AbstractContextManager[ClientConnection]:
    """A WebSocket to the service."""
    return connect(f"{service.url.replace('http', 'ws')}/v1/audio/conversation")


def say(client: ClientConnection, *texts: str, **speech: object) -> None:
    """Open a context and say texts, each flushed."""
    fields = {"response_format": "pcm", "seed": 5, "cache": "no-store"} | speech
    client.send(json.dumps({"type": "open", "speech": fields}))
    for text in texts:
        client.send(json.dumps({"type": "text", "text": text}))
        client.send(json.dumps({"type": "flush"}))


def messages(client: ClientConnection) -> Iterator[dict[str, Any]]:
    while True:
        yield json.loads(client.recv(timeout=60))


def test_a_conversation_through_haproxy_has_the_bytes_of_http_and_is_interrupted(service: Service):
    with conversation(service) as client:
        say(client, "Hello there.")
        client.send(json.dumps({"type": "close"}))
        events = list(itertools.takewhile(lambda message: message["type"] != "closed", messages(client)))
        audio = b"".join(base64.b64decode(message["audio"]) for message in events if message["type"] == "audio")
        assert audio == service.speak().content
        say(client, LONG["input"][:4000], **FLAT)
        assert any(message["type"] == "audio" for message in messages(client))
        client.send(json.dumps({"type": "cancel"}))
        assert any(message["type"] == "cancelled" for message in messages(client))
        wait_until(service.is_idle, 60.0)


def test_a_client_that_leaves_frees_its_slots(service: Service):
    earlier = service.output().count("outcome=left")  # an interrupted conversation leaves its request, too
    for headers in ({}, {"x-request-disconnect-disabled": "?1"}):
        with requests.post(f"{service.url}/v1/audio/speech", json=LONG, headers=headers, stream=True, timeout=60) as reply:
            chunks = reply.iter_content(4096)  # kept: urllib3 closes the connection of one that is thrown away
            assert next(chunks)
            # Slots may look free in between: the demo's steps take a tenth of a millisecond and run ahead of the reader.
            # It goes on reading, because a reader that takes nothing for STALL_S is cut, and that is another outcome.
            wait_until(lambda chunks=chunks: next(chunks) and service.in_flight() > 0, 60.0)
        wait_until(service.is_idle, 60.0)
    wait_until(lambda: service.output().count("outcome=left") >= earlier + 2, 60.0)
    assert "reader_stalled" not in service.output(), "it was noticed that they left, before they were slow"


@pytest.mark.nightly
def test_a_reader_that_takes_nothing_is_cut_and_costs_no_memory(service: Service):
    """The sockets on the way hold some megabytes; beyond them the service waits, and then no longer."""
    body = requests.Request("POST", service.url, json=LONG | {"input": SENTENCE * 600}).prepare().body
    assert isinstance(body, bytes)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", service.port))
        head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        assert b" 200 " in client.recv(1024)
        wait_until(lambda: service.in_flight() == 0, 60.0)
    wait_until(service.is_idle, 60.0)
    wait_until(lambda: "reader_stalled" in service.output(), 60.0)
    assert service.speak(seed=1).status_code == 200, "the others never noticed"


def test_haproxys_files_and_socket_are_for_this_user_alone(service: Service):
    (folder,) = {config.parent for config in haproxys(service).values()}
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "admin.sock").stat().st_mode) == 0o600
    assert folder.parent.parent == Path("/tmp"), "a folder of its own: another user's would be in the way"


@pytest.mark.parametrize("half_closes", [False, True])
def test_what_haproxy_and_the_replicas_server_refuse_comes_in_the_envelope(service: Service, half_closes: bool):
    """A header that uvicorn cannot read; a client that ends its half of the connection long before the reply is there."""
    body = json.dumps({**LONG, "stream": False}).encode()
    accept, length = ("*/*", len(body)) if half_closes else ("*\x01", 0)
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: {accept}\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as client:
        client.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body[:length])
        if half_closes:
            client.shutdown(socket.SHUT_WR)
        reply = client.makefile("rb")
        assert b" 400 " in reply.readline()
        headers = http.client.parse_headers(reply)
        error = json.loads(reply.read(int(headers["Content-Length"])))["error"]
        assert (headers["Content-Type"], error["code"]) == ("application/json", "bad_request")
    wait_until(service.is_idle, 60.0)


@pytest.mark.nightly
def test_a_burst_is_refused_in_the_envelope_and_some_of_it_is_heard(service: Service, capsys: pytest.CaptureFixture[str]):
    """Three times 300 requests at once, for 32 places. The time of refusals is shown, not judged: other work goes on here."""
    replies = asyncio.run(bursts(service.port, rounds=3, size=300))
    refusals = sorted(took_s for status, _, took_s in replies if status != 200)
    with capsys.disabled():
        p50, p95 = (round(refusals[int(share * len(refusals))], 3) for share in (0.5, 0.95))
        print(f"\n  {len(refusals)} of {len(replies)} refused; p50 {p50} s, p95 {p95} s")
    assert {status for status, _, _ in replies} == {200, 429}
    assert {code for _, code, _ in replies} <= {"", "overloaded", "deadline_unmeetable"}
    wait_until(service.is_idle, 30.0)


async def bursts(port: int, *, rounds: int, size: int) -> list[tuple[int, str, float]]:
    """Status, error code and seconds to the head of every reply; each burst begins when the one before has been heard."""
    body = json.dumps({"input": "Hello there.", "response_format": "pcm", "cache": "no-store"}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    raw = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def ask() -> tuple[int, str, float]:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        head = await reader.readuntil(b"\r\n\r\n")
        took_s, status = time.perf_counter() - began, int(head.split()[1])
        rest = await reader.read()
        writer.close()
        return status, "" if status == 200 else json.loads(rest)["error"]["code"], took_s

    return [reply for _ in range(rounds) for reply in await asyncio.gather(*(ask() for _ in range(size)))]


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["HAProxy", "its manager"])
def test_while_haproxy_is_replaced_nobody_is_told_that_the_path_is_wrong(service: Service, victim: str):
    """Connections are refused, then there is a 503 until the replicas are known. A 404 would be final."""
    before, statuses = set(haproxys(service)), set()
    (listener,) = before
    os.kill(listener if victim == "HAProxy" else parent_of(listener), signal.SIGKILL)

    def is_back() -> bool:
        with contextlib.suppress(requests.RequestException):
            statuses.add(requests.get(f"{service.url}/live", timeout=10).status_code)
        return set(haproxys(service)) - before != set() and 200 in statuses and service.speak().status_code == 200

    wait_until(lambda: before - set(haproxys(service)), 30.0)
    statuses.clear()
    recovered("F-12", wait_until(is_back, 60.0))
    assert statuses <= {200, 503}


@pytest.mark.nightly
def test_rays_ports_need_the_token(service: Service, tmp_path: Path):
    """From another machine nothing is open but calls between replicas, and no port lets in who has no token."""
    opened = own_listeners(service.processes())
    gcs = gcs_address(service.processes())
    assert gcs is not None
    ports = sorted({listener.port for _, listener in opened})
    assert len(ports) > 10, "Ray's own are among them"
    mark = tmp_path / "was here"
    arguments = [str(mark), gcs.rpartition(":")[2], *map(str, ports)]
    with another_machine() as (prefix, address):
        outside = attack(prefix, address, arguments)
    inside = attack([], "127.0.0.1", arguments)
    assert not mark.exists()
    assert not outside["driver"]
    assert not inside["driver"]
    replicas = {listener.port for process, listener in opened if process.name == "ray::ServeRepli" and not listener.is_local}
    assert set(outside["open"]) == replicas
    for port in replicas:
        assert outside["http"][str(port)] == {}
        assert outside["grpc"][str(port)][attacker.METHODS[-1]] == "UNAUTHENTICATED"
    assert inside["open"] == ports
    for port, codes in inside["grpc"].items():
        # The last is said by what talks HTTP alone.
        assert set(codes.values()) <= {"UNAUTHENTICATED", "UNIMPLEMENTED", "UNAVAILABLE", "UNKNOWN"}, (port, codes)
    for method in attacker.METHODS:
        assert any(codes[method] == "UNAUTHENTICATED" for codes in inside["grpc"].values()), method
    for port, statuses in inside["http"].items():
        assert all(status >= 400 for status in statuses.values()), (port, statuses)
    assert any(401 in statuses.values() for statuses in inside["http"].values()), "agent and dashboard ask for the token"


def attack(prefix: list[str], address: str, arguments: list[str]) -> Any:
    """What the attacker found."""
    command = [*prefix, sys.executable, attacker.__file__, address, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_start_prints_which_ports_are_open(service: Service):
    lines = [line for line in service.output().splitlines() if line.startswith("open: ")]
    elsewhere = [line for line in lines if "everyone who reaches this machine" in line]
    assert all("calls between replicas" in line and "only with the token" in line for line in elsewhere)
    assert [line.removeprefix("open: ") for line in elsewhere] == re.findall(r"(?<=  Open:  ).*", service.log.read_text())
    assert any(f"{service.port} " in line and "page and API" in line and "this machine" in line for line in lines)
    assert any("Ray's dashboard" in line and "this machine, only with the token" in line for line in lines)


def test_the_token_is_private_and_in_no_list_of_processes(service: Service):
    run = service.run_folder()
    token = (run / "token").read_text()
    assert len(bytes.fromhex(token)) == 32
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.iterdir()}
    assert modes == {"token": 0o600, "env": 0o600, "lock": 0o600, "sockets": 0o700}
    assert run.stat().st_mode & 0o777 == run.parent.stat().st_mode & 0o777 == 0o700
    assert not [process for process in service.processes() if token in process.command()]


def test_the_line_for_rays_commands_works_in_a_shell(service: Service):
    (line,) = [line for line in service.output().splitlines() if line.startswith("  Ray:")]
    environment = {name: value for name, value in service.environment.items() if name not in OFFICE}
    done = subprocess.run(
        ["bash", "-c", line.split("Ray:")[1]],
        env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "status: RUNNING" in done.stdout, done.stderr


def test_a_second_start_says_who_has_the_ports_and_starts_nothing(service: Service, home: Path, folder: Path):
    ports = {name: service.environment[name] for name in HAPROXY_PORTS}
    with started(home=home, folder=folder / "second", port=service.port, **ports) as second:
        assert second.exit_code() == 1
        lines = second.log.read_text().splitlines()
        assert any(f"127.0.0.1:{service.port} is taken by haproxy" in line for line in lines)
        assert len(lines) == 1 + len(ports), "a sentence for each port, and nothing else"
    assert service.speak(seed=1).status_code == 200


def test_the_start_ignores_ray_address_and_raises_the_limit_of_files(service: Service):
    assert "RAY_ADDRESS is ignored" in service.output()
    limits = Path(f"/proc/{service.serve_run().pid}/limits").read_text()
    (files,) = [line.split()[3] for line in limits.splitlines() if line.startswith("Max open files")]
    assert int(files) > 8000


def drained(service: Service) -> subprocess.CompletedProcess[str]:
    """Drains the service with the command for it."""
    environment = {name: value for name, value in service.environment.items() if name not in OFFICE}
    command = [sys.executable, "-m", "serve.commands.operate.drain", str(service.config), "--grace", "60"]
    return subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=200)


def test_draining_tells_a_conversation_and_lets_it_finish(service: Service):
    with conversation(service) as client:
        say(client, *["These are some words. "] * 4)
        assert any(message["type"] == "audio" for message in messages(client))
        assert drained(service).returncode == 0
        kinds = []
        with contextlib.suppress(ConnectionClosed):
            for message in messages(client):
                kinds.append(message["type"])
        assert "going_away" in kinds
        assert kinds.count("finished") == 4, "what was flushed is spoken to its end"
        assert client.close_code == 1001


def test_draining_finds_the_service_and_its_token_by_itself(service: Service):
    """The last but one: a drained service takes nothing new."""
    done = drained(service)
    assert done.returncode == 0, done.stderr
    assert service.speak().json()["error"]["code"] == "draining"


def test_ctrl_c_ends_it(service: Service):
    session = service.serve_run().session
    run = service.run_folder()
    service.process.send_signal(signal.SIGINT)
    assert service.exit_code() == 0
    nothing_is_left(session, service.url)
    assert not run.exists()
    assert not haproxys(service)


def haproxys(service: Service) -> dict[int, Path]:
    """The processes that are HAProxy of this service, with their configurations; those that only finish streams left out."""
    configs = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            arguments = process.joinpath("cmdline").read_bytes().split(b"\0")
            config = Path(os.fsdecode(arguments[arguments.index(b"-f") + 1]))
            is_ours = f"bind 127.0.0.1:{service.port}\n" in config.read_text()
            if is_ours and process.joinpath("exe").readlink().name == "haproxy":
                configs[int(process.name)] = config
    return configs


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
