"""HAProxy behind serve/http/haproxy.py: Serve's real template, the real binary, no Ray."""

import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from ray.serve._private import haproxy as serves
from ray.serve._private.haproxy import ServerConfig
from ray.serve.config import gRPCOptions
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve.commands.launch.open_files import files_for
from serve.config.app_config import PROJECT
from serve.http.haproxy import REPLIES, TemplateChanged, is_loopback, rewrite_file, rewritten
from tests.support.haproxy import WRAPPER, Replica, environment, generated, listens, manager, replica, running
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    # Short: a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ha-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


def parts(raw: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and envelope of a reply."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert headers["content-type"] == "application/json"
    assert int(headers["content-length"]) == len(body)
    return int(first.split()[1]), headers, json.loads(body)["error"]


@pytest.mark.parametrize("server", [None, 19000])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "10.1.2.3"])
def test_haproxy_accepts_what_becomes_of_serves_own_template(folder, host, server):
    path = generated(manager(folder, host=host, server=server))
    done = subprocess.run([WRAPPER, "-c", "-f", path], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Configuration file is valid" in done.stdout
    assert "ALERT" not in done.stderr


def test_every_line_we_do_not_change_stays(folder):
    text = generated(manager(folder, server=19000)).read_text()
    before, after = (
        {line.strip() for line in of.splitlines()} - {""} for of in (text, rewritten(text, folder, was_deployed=True))
    )
    assert [" ".join(line.split()[:2]) for line in sorted(before - after)] == [
        f"bind *:{re.search(r'bind [*]:([0-9]+)', text)[1]}",
        f"bind :{re.search(r'bind :([0-9]+)', text)[1]}",
        "errorfile 502",
        "errorfile 503",
        "errorfile 504",
        "http-request return",
        "http-reuse always",
        "option splice-request",
        "option splice-response",
        "stats socket",
    ]


def test_a_template_of_another_release_is_refused_in_one_sentence(folder):
    path = generated(manager(folder))
    path.write_text(path.read_text().replace("mode 666", "mode 660"))
    with pytest.raises(TemplateChanged, match=r"section `global`, found 0"):
        rewrite_file(path)
    done = subprocess.run([WRAPPER, "-db", "-f", path], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "this release of Ray writes another configuration" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_configuration_it_is_haproxy_itself():
    output = subprocess.run([WRAPPER, "-v"], env=environment(), capture_output=True, text=True, check=True).stdout
    assert output.startswith("HAProxy version")


def test_the_module_for_reloads_imports_no_ray():
    """Each reload waits for it."""
    code = "import serve.http.haproxy, sys; print(sorted({'ray', 'fastapi', 'pydantic', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_this_user_reads_its_folder_and_uses_its_socket(folder):
    with running(manager(folder)):
        socket_file = folder / "admin.sock"
        wait_until(socket_file.exists)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600


def test_statistics_and_metrics_listen_where_the_service_does(folder):
    """Statistics by this machine alone; metrics by others too where the service is, Prometheus among them."""
    for host, address in (("127.0.0.1", "127.0.0.1:"), ("0.0.0.0", ":")):
        of = manager(folder, host=host)
        text = rewritten(generated(of).read_text(), folder, was_deployed=False)
        assert f"bind {address}{of.cfg.metrics_port}\n" in text
        assert f"bind 127.0.0.1:{of.cfg.stats_port}\n" in text
    with running(manager(folder)) as proxy:
        assert listens(proxy.of.cfg.metrics_port)
        assert listens(proxy.of.cfg.stats_port)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_loopback_by_any_spelling(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "::", "10.0.0.1", "gpu-1", ""])
def test_what_others_can_reach_is_not_loopback(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("grpc", [False, True])
def test_until_an_application_was_deployed_the_service_starts_and_without_one_it_is_a_404(folder, grpc):
    of = manager(folder)
    if grpc:  # Serve routes one of gRPC's methods before there is an application
        of.cfg.grpc_options = gRPCOptions(port=free_port(), grpc_servicer_functions=["ray.serve.generated.x"])
        of.set_grpc_fallback_server(ServerConfig(name="fallback", host="127.0.0.1", port=free_port()))
    assert any(line.split()[:1] == ["use_backend"] for line in generated(of).read_text().splitlines()) == grpc
    with running(of) as proxy:
        status, headers, error = parts(proxy.get("/v1/audio/speech"))
    assert (status, headers["retry-after"], error["code"]) == (503, "1", "starting")
    assert "x-should-retry" not in headers, "a client library asks again"
    for server, refusal in ((free_port(), "404.reply"), (None, "404.reply")):
        path = generated(manager(folder, server=server))
        rewrite_file(path)
        assert f"http-request return errorfile '{folder / refusal}'" in path.read_text()
    path = generated(manager(folder))
    subprocess.run([WRAPPER, "-c", "-f", path], env=environment(), capture_output=True, check=True)
    assert f"http-request return errorfile '{folder / 'starting.reply'}'" in path.read_text(), "another start"


def test_a_dead_replica_is_a_503_before_the_request_and_during_it(folder):
    with running(manager(folder, server=free_port())) as proxy:
        status, headers, error = parts(proxy.get("/"))
        assert (status, headers["retry-after"], error["code"]) == (503, "1", "unavailable")
    with replica() as port, running(manager(folder, server=port)) as proxy:
        wait_until(lambda: proxy.get("/").startswith(b"HTTP/1.1 200 "))
        status, headers, error = parts(proxy.get("/gone"))
        assert (status, headers["retry-after"], error["code"]) == (503, "1", "unavailable")


async def healthy(request: Request) -> Response:
    return Response("success")


def test_a_request_that_uvicorn_cannot_read_is_refused_in_the_envelope(folder):
    healthz = Route("/-/healthz", healthy)
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=[healthz]), port=free_port(), log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with running(manager(folder, server=server.config.port)) as proxy:
            # HAProxy lets both through.
            wait_until(lambda: not proxy.get("/").startswith(b"HTTP/1.1 503 "))
            for head in (b"GET / HTTP/1.1\r\nA: \x01", b"FOO / HTTP/1.1"):
                status, headers, error = parts(proxy.ask(head + b"\r\nHost: x\r\nConnection: close\r\n\r\n"))
                assert (status, error["code"], headers["x-should-retry"]) == (400, "bad_request", "false")
    finally:
        server.should_exit = True
        thread.join(timeout=60)


def test_a_half_closed_connection_gets_an_explanation(folder):
    """option abortonclose: who closes is taken for gone, so that nothing is spoken for nobody."""
    with replica() as port, running(manager(folder, server=port)) as proxy:
        wait_until(lambda: proxy.get("/").startswith(b"HTTP/1.1 200 "))
        status, _, error = parts(proxy.ask(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n", half_close=True))
        assert (status, error["code"]) == (400, "bad_request")
        assert "half closed" in error["message"]


def test_headers_that_never_end_block_no_client_for_long(folder):
    """Every connection there may be is held by one. They are ended, what is being heard goes on, the next is answered."""
    unfinished = b"GET / HTTP/1.1\r\nHost:"
    with replica() as port, running(manager(folder, server=port, maxconn=50)) as proxy:
        wait_until(lambda: proxy.get("/").startswith(b"HTTP/1.1 200 "))
        with contextlib.ExitStack() as open_ones:
            stream, silent, *slow = [
                open_ones.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=60)) for _ in range(60)
            ]
            stream.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            received = stream.recv(65536)
            for client in slow:
                client.sendall(unfinished)
            assert proxy.get("/").startswith(b"HTTP/1.1 200 "), "this one gives up after a minute"
            assert slow[0].recv(65536).startswith(b"HTTP/1.1 408 ")
            assert silent.recv(65536) == b"", "a browser's spare connection: closed without an error nobody asked for"
            Replica.goes_on.set()
            received += b"".join(iter(lambda: stream.recv(65536), b""))
            assert len(received.partition(b"\r\n\r\n")[2]) == 2000


@pytest.mark.parametrize("connections", [300, 5200])
def test_the_files_that_the_launcher_counts_are_enough_and_one_connection_more_would_be_refused(folder, connections):
    files = files_for(connections)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < files:
        pytest.skip("this machine's own limit is lower")
    with replica() as port:
        with running(manager(folder, server=port, maxconn=connections), files=files) as proxy:
            wait_until(lambda: proxy.get("/").startswith(b"HTTP/1.1 200 "))
        with (
            pytest.raises(AssertionError, match="limit is"),
            running(manager(folder, maxconn=connections), files=2 * connections),
        ):
            pass


def test_every_connection_that_it_counts_is_held_with_its_replica(folder):
    """Streams that are open at both ends, as many as there may be, and the next one when one of them has ended."""
    most = 40
    with replica() as port, running(manager(folder, server=port, maxconn=most), files=files_for(most)) as proxy:
        wait_until(lambda: proxy.get("/").startswith(b"HTTP/1.1 200 "))
        with contextlib.ExitStack() as open_ones:
            for _ in range(most):
                client = open_ones.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=60))
                client.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
            Replica.goes_on.set()
            assert proxy.get("/").startswith(b"HTTP/1.1 200 ")


def test_serves_manager_reloads_it_and_streams_go_on(folder, monkeypatch):
    monkeypatch.setattr(serves, "RAY_SERVE_HAPROXY_BINARY_PATH", str(WRAPPER))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)

    async def reload_during_a_stream(port: int) -> None:
        of = manager(folder, server=port)
        await of.start()
        try:
            first = of._proc.pid
            reader, writer = await asyncio.open_connection("127.0.0.1", of.cfg.frontend_port)
            while True:
                writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"HTTP/1.1 200 "):
                    break
                reader, writer = await asyncio.open_connection("127.0.0.1", of.cfg.frontend_port)
            await reader.readexactly(1000)
            await of.reload()
            assert of._proc.pid != first
            assert of._is_our_haproxy(of._proc.pid), "found by its arguments"
            assert of.has_alive_old_procs(), "the stream holds the old process"
            assert stat.S_IMODE((folder / "admin.sock").stat().st_mode) == 0o600
            Replica.goes_on.set()
            assert len(await reader.read()) == 1000
            writer.close()
            await asyncio.to_thread(wait_until, lambda: not of.has_alive_old_procs())
        finally:
            await of.stop()

    with replica() as port:
        asyncio.run(asyncio.wait_for(reload_during_a_stream(port), 100))


def test_haproxy_frees_its_port_when_its_manager_is_killed(folder):
    code = (
        "import asyncio, sys; from pathlib import Path; from tests.support.haproxy import manager\n"
        "async def run():\n"
        "    of = manager(Path(sys.argv[1]), server=int(sys.argv[2])); await of.start()\n"
        "    print(of.cfg.frontend_port, of._proc.pid, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(run())"
    )
    with replica() as server:
        starter = subprocess.Popen(
            [sys.executable, "-c", code, folder, str(server)],
            env={**os.environ, **environment(), "RAY_SERVE_HAPROXY_BINARY_PATH": str(WRAPPER)},
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            port, pid = map(int, starter.stdout.readline().split())
            wait_until(lambda: streams(port))
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                received = client.recv(65536)
                starter.kill()
                starter.wait(timeout=30)
                wait_until(lambda: not listens(port))
                Replica.goes_on.set()
                received += b"".join(iter(lambda: client.recv(65536), b""))
                assert len(received.partition(b"\r\n\r\n")[2]) == 2000
            wait_until(lambda: not runs(pid))
        finally:
            starter.kill()
            starter.wait(timeout=30)
            starter.stdout.close()


def streams(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return client.recv(64).startswith(b"HTTP/1.1 200 ")


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_every_reply_of_the_table_is_whole_and_fits_haproxys_buffer(folder):
    rewrite_file(generated(manager(folder)))
    for status in REPLIES:
        raw = (folder / f"{status}.reply").read_bytes()
        code, headers, error = parts(raw)
        assert len(raw) < 8192
        assert set(error) == {"message", "type", "param", "code", "request_id"}
        assert ("retry-after" in headers) == (code == 503)
