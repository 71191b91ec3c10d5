"""Services: programs of the machine that tests run for real, each on a free port, and stop again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.support.ports import free_port


def needed_program(name: str, package: str) -> str:
    """The program's path. Where it is missing the test is skipped, or fails when CHATTTS_ALL_TOOLS=1 asks for all of them."""
    path = shutil.which(name)
    if path is None:
        sentence = f"{name} is missing: install the Debian package {package}"
        if os.environ.get("CHATTTS_ALL_TOOLS") == "1":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return path


class RedisServer:
    """A redis-server of our own, which survives its own restarts (appendonly)."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._options = options
        self._program = needed_program("redis-server", "redis-server")
        self._folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Returns once it answers."""
        self._process = subprocess.Popen(
            [
                *(self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning"),
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
        )
        client = redis.Redis(port=self.port)
        began = time.monotonic()
        while True:
            try:
                client.ping()
            except redis.RedisError:
                assert time.monotonic() - began < 20, "redis-server does not answer"
                time.sleep(0.01)
            else:
                client.close()
                return

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a crash does it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None


class Mosquitto:
    """A broker of our own, without retained messages that survive it."""

    def __init__(self, folder: Path) -> None:
        self._program, self.port = needed_program("mosquitto", "mosquitto"), free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._config = folder / "mosquitto.conf"
        self._config.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\n")
        self.start()

    def start(self) -> None:
        """Returns once it listens."""
        self._process = subprocess.Popen([self._program, "-c", str(self._config)], stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return
            assert time.monotonic() - began < 20, "mosquitto does not listen"
            time.sleep(0.02)

    def kill(self) -> None:
        """As a crash does it."""
        self._process.kill()
        self._process.wait(timeout=10)


def saved_state(url: str) -> Callable[[], object]:
    """Remembers the state of a store, a file or a Redis. What is returned brings that state back, as a restored backup does."""
    if "://" not in url:
        copy = Path(f"{url}.saved")
        shutil.copy(url, copy)
        return partial(shutil.copy, copy, url)
    client = redis.Redis.from_url(url)
    dumps = {name: client.dump(name) or b"" for name in client.scan_iter()}

    def restore() -> None:
        client.flushall()
        for name, dump in dumps.items():
            client.restore(name, 0, dump)

    return restore
