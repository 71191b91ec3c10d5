"""Start: checks a configuration, runs it under `serve run` and says when and where it listens. What `make serve` does.

In:    a configuration file
Out:   a running service, until Ctrl-C, or until SIGTERM has let every stream end
Owns:  the environment of Ray's processes
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import requests
from rich.console import Console

from pipeline.checkpoints import cache_home, resolve
from pipeline.errors import CheckpointError, ConfigError
from serve.config_file import ConfigFile, check_file

# The fast data path of Ray Serve: HAProxy in front, replicas answer HTTP themselves, handles by value. It also is the
# only one with back-pressure to the generator. Everything works without them; a value set outside wins.
ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",  # throughput mode holds 1000 lines back: those before a crash are lost
    "RAY_SERVE_LOG_TO_STDERR": "1",  # throughput mode turns it off
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # 30 by default: Ctrl-C would take as long
    "RAY_AUTH_MODE": "disabled",  # one machine, loopback; `token` wherever others can reach the ports
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default: beside any other work the service would starve
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve.edge:middlewares",
}
POLL_S = 0.5
DRAIN_MARGIN_S = 30.0  # to connect to the cluster and to be answered
ANY_HOST = "0.0.0.0"


def main() -> int:
    """Check, make the checkpoint, run, wait, announce."""
    parser = argparse.ArgumentParser(description="Run the service until Ctrl-C.")
    parser.add_argument("config", type=Path)
    parser.add_argument("--plain", action="store_true", help="Serve's default data path, without HAProxy")
    args = parser.parse_args()
    console = Console()
    try:
        checked = check_file(args.config)
        checkpoint = checked.app.pipeline.checkpoint
        with console.status(f"checkpoint {checkpoint}"):
            resolve(checkpoint, cache_home())
    except (ConfigError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 1
    address = http_address(checked)
    environment = ({} if args.plain else ENVIRONMENT) | dict(os.environ)
    command = shutil.which("serve", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if command is None:
        print("the `serve` command of ray[serve] is not installed beside this Python", file=sys.stderr)
        return 1
    # A group of its own: Ctrl-C and a stopping container reach this process alone, which passes them on in its order.
    server = subprocess.Popen([command, "run", str(args.config)], env=environment, start_new_session=True)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with console.status("starting Ray, loading, warming up"):
            code = wait_until_ready(server, address)
        if code is not None:
            return code
        announce(console, address, checkpoint)
        return server.wait()
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        drain(args.config, longest_stream_s(checked), environment)
        server.send_signal(signal.SIGINT)
        server.wait()
        return 0
    except KeyboardInterrupt:
        server.send_signal(signal.SIGINT)  # SIGTERM would leave the application behind
        return server.wait()


class Terminated(Exception):
    """Somebody asked this process to stop."""


def _terminated(number: int, frame: object) -> None:
    raise Terminated


def longest_stream_s(file: ConfigFile) -> float:
    """How long an ingress replica may take to end."""
    return float(file.deployment("Ingress").get("graceful_shutdown_timeout_s", 20.0))  # Serve's own default


def drain(config: Path, grace_s: float, environment: dict[str, str]) -> None:
    """Let the streams end. In a process of its own: Ray reads its environment when it is imported."""
    command = [sys.executable, "-m", "scripts.drain", str(config), "--grace", str(grace_s)]
    try:
        subprocess.run(command, env=environment, check=False, timeout=grace_s + DRAIN_MARGIN_S)
    except subprocess.TimeoutExpired:
        print("the cluster does not answer: stopping without waiting", file=sys.stderr)


def http_address(file: ConfigFile) -> str:
    """Where to reach the service from this machine."""
    http = file.document.get("http_options", {})
    host, port = http.get("host", ANY_HOST), http.get("port", 8000)  # Serve's own defaults
    return f"http://{'127.0.0.1' if host == ANY_HOST else host}:{port}"


def wait_until_ready(server: subprocess.Popen[bytes], address: str) -> int | None:
    """None once /ready says so; the exit code of a server that ended before."""
    while server.poll() is None:
        try:
            if requests.get(f"{address}/ready", timeout=5).status_code == 200:
                return None
        except requests.RequestException:
            pass
        time.sleep(POLL_S)
    return server.returncode


def announce(console: Console, address: str, checkpoint: str) -> None:
    """What to do now."""
    note = ("  Note:  the demo voice knows some 260 English words; README.md says how to get the real weights",)
    body = '{"input": "Five one one, two five five.", "voice": "default", "seed": 1, "response_format": "wav"}'
    lines = (
        "",
        f"  Page:  {address}/",
        f"  Hear:  curl {address}/v1/audio/speech -H 'Content-Type: application/json' -d '{body}' -o hello.wav",
        *(note if checkpoint == "demo" else ()),
        "  Stop:  Ctrl-C",
        "",
    )
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
