"""Processes: finds the processes of a session and the ports that are open, and ends a session. Linux: it reads /proc.

In:    a session id (`setsid`: every descendant keeps it, whatever its parent is), or a variable of an environment
Out:   processes, sessions, listening sockets
Owns:  nothing
Never: ending anything outside the session it was given
"""

import ipaddress
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from serve.config.hosts import is_loopback

PROC = Path("/proc")
POLL_S = 0.1
KILL_ROUNDS = 50  # a process may start another one while it is being killed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs; zombies do not."""

    pid: int
    name: str
    """the program's, at most 15 characters"""
    parent: int
    session: int

    @property
    def is_own(self) -> bool:
        """True if it runs as the user of this process."""
        with suppress(OSError):
            return (PROC / str(self.pid)).stat().st_uid == os.geteuid()
        return False

    def command(self) -> str:
        """Returns its arguments, or the title it has set; empty once it has ended."""
        return _read(self.pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


@dataclass(frozen=True, slots=True)
class Listener:
    """An open TCP port."""

    address: Address
    port: int
    inode: int
    """the socket's; `owners` returns the processes by it"""

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach it."""
        return is_loopback(str(self.address))


def processes() -> Iterator[Process]:
    """Yields every process of this machine."""
    for name in os.listdir(PROC):
        if name.isdigit() and (found := process(int(name))) is not None:
            yield found


def process(pid: int) -> Process | None:
    """Returns a process; None if it does not run."""
    stat = _read(pid, "stat").decode(errors="replace")
    if not stat:
        return None
    begin, end = stat.index("("), stat.rindex(")")  # a name may hold both
    state, parent, _, session, *_ = stat[end + 1 :].split()
    return None if state in "ZX" else Process(pid, stat[begin + 1 : end], int(parent), int(session))


def members(session: int) -> list[Process]:
    """Returns the processes of a session."""
    return [found for found in processes() if found.session == session]


def sessions_with(variable: str) -> set[int]:
    """Returns the sessions in which a process was started with `NAME=value`; other users' cannot be read."""
    wanted = variable.encode()
    return {found.session for found in processes() if wanted in _read(found.pid, "environ").split(b"\0")}


def end_session(session: int, patience_s: float) -> list[str]:
    """Sends SIGTERM to every process of a session, then SIGKILL to those that are left.

    Args:
        session: any session but this process's own.
        patience_s: time between the two signals [s]; 0: SIGKILL at once.

    Returns:
        The names of the programs that were ended.
    """
    if session == os.getsid(0):
        raise ValueError("a process does not end its own session")
    found = members(session)
    deadline = time.monotonic() + patience_s
    if patience_s > 0:
        _signal(found, signal.SIGTERM)
        while members(session) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    for _ in range(KILL_ROUNDS):
        if not (left := members(session)):
            break
        _signal(left, signal.SIGKILL)
        time.sleep(POLL_S)
    return sorted({each.name for each in found})


def _signal(targets: list[Process], number: signal.Signals) -> None:
    for target in targets:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(target.pid, number)


def listeners() -> list[Listener]:
    """Returns every open TCP port of this machine."""
    return [*_listeners("tcp", _ipv4), *_listeners("tcp6", _ipv6)]


def owners(pids: list[int]) -> dict[int, int]:
    """Returns socket inode -> process id for these processes; other users' processes cannot be read."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            for entry in os.scandir(PROC / str(pid) / "fd"):
                with suppress(OSError):
                    target = os.readlink(entry.path)
                    if target.startswith("socket:["):
                        found[int(target[8:-1])] = pid
    return found


def is_free(host: str, port: int) -> bool:
    """True if a process could listen there now."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        return True
    return False


def _listeners(table: str, decode: Callable[[str], Address]) -> Iterator[Listener]:
    with suppress(OSError):  # no IPv6 on this machine
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A":  # LISTEN
                address, _, port = columns[1].partition(":")
                yield Listener(decode(address), int(port, 16), int(columns[9]))


def _ipv4(digits: str) -> Address:
    return ipaddress.IPv4Address(_bytes(digits))


def _ipv6(digits: str) -> Address:
    return ipaddress.IPv6Address(_bytes(digits))


def _bytes(digits: str) -> bytes:
    """Returns an address in network order; the kernel writes words of four bytes in this machine's byte order."""
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    return b"".join(int.from_bytes(word, "big").to_bytes(4, sys.byteorder) for word in words)


def _read(pid: int, name: str) -> bytes:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:  # it ended, or is another user's
        return b""
