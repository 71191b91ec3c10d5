"""HAProxy as Ray Serve configures and starts it, without Ray: its real template, our program around the real binary."""

import contextlib
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from serve.config.app_config import PROJECT
from tests.support.ports import free_port
from tests.support.waiting import wait_until

WRAPPER = PROJECT / "serve" / "http" / "haproxy.sh"


def manager(folder: Path, *, host: str = "127.0.0.1", maxconn: int = 4096, server: int | None = None) -> HAProxyApi:
    """Serve's own manager of one HAProxy.

    Args:
        folder: for its files; short, since sockets lie in it.
        host: where clients are heard.
        server: port of the one replica; None: no application is known yet.
    """
    config = HAProxyConfig(
        http_options=HTTPOptions(host=host, port=free_port(), keep_alive_timeout_s=75),
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "server-state"),
        metrics_socket_path=str(folder / "metrics.sock"),
        metrics_port=free_port(),
        stats_port=free_port(),
        maxconn=maxconn,
        is_head=True,
    )
    api = HAProxyApi(config, config_file_path=str(folder / "haproxy.cfg"))
    if server is not None:
        api.set_backend_configs(
            {
                "http-chattts": BackendConfig(
                    name="http-chattts",
                    path_prefix="/",
                    app_name="chattts",
                    servers=[ServerConfig(name="replica", host="127.0.0.1", port=server)],
                )
            }
        )
    return api


def generated(of: HAProxyApi) -> Path:
    """The configuration Serve's template makes of it."""
    of._generate_config_file_internal()
    return Path(of.config_file_path)


@dataclass
class Proxy:
    """A running HAProxy."""

    of: HAProxyApi
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.of.cfg.frontend_port)

    def ask(self, raw: bytes, *, half_close: bool = False) -> bytes:
        """Everything that comes back until the proxy closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            client.sendall(raw)
            if half_close:
                client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(65536), b""))

    def get(self, path: str) -> bytes:
        return self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())


@contextlib.contextmanager
def running(of: HAProxyApi, *, files: int | None = None) -> Iterator[Proxy]:
    """HAProxy, started as the manager starts it, once it listens.

    Args:
        files: how many it may open; None: as many as this process.
    """
    path = generated(of)

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    with (path.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            [WRAPPER, "-db", "-f", path, "-dR"], stdout=log, stderr=log, env=environment(), preexec_fn=limit
        )
    try:
        wait_until(lambda: listens(of.cfg.frontend_port) or process.poll() is not None)
        assert process.poll() is None, (path.parent / "log").read_text()
        yield Proxy(of, process)
    finally:
        process.kill()
        process.wait(timeout=30)


def environment() -> dict[str, str]:
    """What haproxy.sh needs."""
    return {"CHATTTS_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin"}


class Replica(BaseHTTPRequestHandler):
    """Answers as an ingress replica does, or dies."""

    protocol_version = "HTTP/1.1"
    goes_on = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/gone":
            self.close_connection = True
            return
        if self.path == "/wait":
            self.goes_on.wait(60)
        body = b"x" * 1000
        self.send_response(200)
        self.send_header("Content-Length", str(2 * len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.path == "/stream":
            self.wfile.flush()
            self.goes_on.wait(60)
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


@contextlib.contextmanager
def replica() -> Iterator[int]:
    """Yields its port."""
    Replica.goes_on.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replica)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        Replica.goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True
