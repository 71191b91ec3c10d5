"""A network in which another machine would be: a namespace joined to this one by a pair of virtual interfaces."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

from tests.support.services import needed_program

OURS, THEIRS = "198.18.77.1", "198.18.77.2"  # RFC 2544: networks of tests
ANOTHER_ADDRESS = "127.0.0.2"  # of this machine: whoever listens on 127.0.0.1 alone does not answer there


@contextlib.contextmanager
def another_machine() -> Iterator[tuple[list[str], str]]:
    """What a command begins with to be run there, and this machine's address as seen from it.

    Where namespaces are not allowed: no prefix, and an address only those answer on who listen on all of them.
    """
    ip = needed_program("ip", "iproute2")
    name = f"chattts{os.getpid()}"
    ours, theirs = f"a{os.getpid()}", f"b{os.getpid()}"
    steps = (
        f"{ip} netns add {name}",
        f"{ip} link add {ours} type veth peer name {theirs} netns {name}",
        f"{ip} address add {OURS}/30 dev {ours}",
        f"{ip} link set {ours} up",
        f"{ip} -n {name} address add {THEIRS}/30 dev {theirs}",
        f"{ip} -n {name} link set {theirs} up",
        f"{ip} -n {name} link set lo up",
    )
    try:
        allowed = all(_worked(step) for step in steps)
        yield ([ip, "netns", "exec", name], OURS) if allowed else ([], ANOTHER_ADDRESS)
    finally:
        _worked(f"{ip} link delete {ours}")
        _worked(f"{ip} netns delete {name}")


def _worked(command: str) -> bool:
    return subprocess.run(command.split(), capture_output=True, check=False).returncode == 0
