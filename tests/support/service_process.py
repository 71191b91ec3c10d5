"""A service in a process of its own, which can be killed: `python -m tests.support.service_process PORT`."""

import subprocess
import sys
import time
from contextlib import suppress
from subprocess import PIPE

import requests
import uvicorn

from serve.config.app_config import PROJECT
from serve.protocols.api import create_api
from tests.support.fakes import Speaker, make_services

CHUNKS = 10
STARTED_S = 60.0


def start_service(port: int) -> "subprocess.Popen[bytes]":
    """Returns once it answers."""
    process = subprocess.Popen([sys.executable, "-m", "tests.support.service_process", str(port)], cwd=PROJECT)
    began = time.monotonic()
    while time.monotonic() - began < STARTED_S:
        with suppress(requests.ConnectionError):
            if requests.get(f"http://127.0.0.1:{port}/live", timeout=5).ok:
                return process
        time.sleep(0.05)
    process.kill()
    raise TimeoutError("the service does not answer")


def say_live(url: str, text: str) -> "subprocess.Popen[bytes]":
    """Starts docs/say_live.py with a text, to listen to a service at an http address; its stdout is 16-bit PCM."""
    command = [sys.executable, "docs/say_live.py", url.replace("http", "ws", 1)]
    saying = subprocess.Popen(command, cwd=PROJECT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert saying.stdin is not None
    saying.stdin.write(text.encode())
    saying.stdin.close()
    saying.stdin = None  # communicate() would flush it
    return saying


if __name__ == "__main__":
    services = make_services(Speaker(chunks=CHUNKS, pause_s=0.05))
    uvicorn.run(create_api(lambda: services), host="127.0.0.1", port=int(sys.argv[1]), log_level="critical", lifespan="off")
