"""Faulty Redis: stands before a redis-server and refuses, keeps silent, or does what it is asked and loses the answer."""

import socket
import threading
import time
from contextlib import suppress
from typing import BinaryIO

from tests.support.services import RedisServer

SILENT, LOST = "silent", "lost"
REFUSALS = {
    "READONLY": b"-READONLY You can't write against a read only replica.",
    "OOM": b"-OOM command not allowed when used memory > 'maxmemory'.",
    "OOM in a script of release 6": b"-ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -OOM command "
    b"not allowed when used memory > 'maxmemory'.",
    "MISCONF": b"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS": b"-NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN": b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "LOADING": b"-LOADING Redis is loading the dataset in memory",
    "BUSY": b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MOVED": b"-MOVED 3999 127.0.0.1:6381",
    "CLUSTERDOWN": b"-CLUSTERDOWN The cluster is down",
    "NOAUTH": b"-NOAUTH Authentication required.",
    "NOPERM": b"-NOPERM this user has no permissions to run the 'evalsha' command",
    "no connections": b"-ERR max number of clients reached",
}
DEFECTS = {
    "WRONGTYPE": b"-WRONGTYPE Operation against a key holding the wrong kind of value",
    "unknown command": b"-ERR unknown command 'EVALSHA'",
    "a mistake in a script": b"-ERR Error running script (call to f_1): @user_script:1: attempt to index a nil value",
}
GREETINGS = (b"HELLO", b"CLIENT", b"AUTH", b"SELECT", b"PING")


class FaultyRedis:
    """Passes on what it reads while `fault` is empty. Greetings of a connection always reach the server."""

    def __init__(self, server: RedisServer) -> None:
        self.fault: str | bytes = ""
        self.delay_s = 0.0
        """before each command, greetings too: a server that is far away"""
        self._there = server.port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._there)) as there:
            reading, answers = client.makefile("rb"), there.makefile("rb")
            while command := _read_command(reading):
                raw, name = command
                time.sleep(self.delay_s)
                fault = "" if name in GREETINGS else self.fault
                if isinstance(fault, bytes):
                    client.sendall(fault + b"\r\n")
                elif fault != SILENT:
                    there.sendall(raw)
                    answer = _read_answer(answers)
                    if fault == LOST:
                        return
                    client.sendall(answer)


def _read_command(reading: BinaryIO) -> tuple[bytes, bytes] | None:
    """Returns the bytes of one command and its name."""
    first = raw = reading.readline()
    words = []
    for _ in range(int(first[1:]) if first else 0):
        size = reading.readline()
        word = reading.read(int(size[1:]) + 2)
        words.append(word[:-2])
        raw += size + word
    return (raw, words[0].upper()) if words else None


def _read_answer(reading: BinaryIO) -> bytes:
    """Returns the bytes of one answer, whatever is nested in it."""
    line = b""
    while not line.endswith(b"\n"):
        line += reading.read(1)
    kind, rest = line[:1], line[1:]
    if kind in b"$=" and int(rest) >= 0:
        body = b""
        while len(body) < int(rest) + 2:
            body += reading.read(int(rest) + 2 - len(body))
        return line + body
    parts = int(rest) * (2 if kind == b"%" else 1) if kind in b"*%~>" else 0
    return line + b"".join(_read_answer(reading) for _ in range(parts))
