"""Sessions are ended whole, whoever the parent of a process is; open ports are those of the kernel."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serve.commands.launch.processes import end_session, is_free, listeners, members, process, sessions_with

# A parent that ends and leaves a child behind, which is then nobody's; neither heeds SIGTERM.
LEAVES_A_CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    print("ready", flush=True)
    time.sleep(600)
"""


def begin(code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | variables, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_an_orphan_that_ignores_sigterm_is_found_and_ended():
    parent = begin(LEAVES_A_CHILD, WHOSE="theirs")
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.wait()
    (orphan,) = members(parent.pid)
    assert orphan.parent != parent.pid
    assert sessions_with("WHOSE=theirs") == {parent.pid}
    assert sessions_with("WHOSE=their") == set(), "a part of a value is not the value"
    assert end_session(parent.pid, 0.2) == [orphan.name]
    assert members(parent.pid) == []
    assert process(orphan.pid) is None


def test_who_heeds_sigterm_may_end_by_himself():
    heeds = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('ready', flush=True); time.sleep(600)"
    child = begin(f"import signal, sys, time; {heeds}")
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    assert end_session(child.pid, 60.0)
    assert child.wait() == 7


def test_nobody_ends_his_own_session():
    with pytest.raises(ValueError, match="its own session"):
        end_session(os.getsid(0), 0.0)


@pytest.mark.parametrize(
    ("family", "host", "is_local"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "127.0.0.9", True),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::1", True),
        (socket.AF_INET6, "::", False),
        (socket.AF_INET6, "::ffff:127.0.0.1", True),
    ],
)
def test_an_open_port_is_found_with_its_owner_and_its_reach(family, host, is_local):
    with socket.socket(family) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        server.listen()
        port = server.getsockname()[1]
        (found,) = [listener for listener in listeners() if listener.port == port]
        assert found.is_local == is_local
        assert found.pid == os.getpid()
        assert not is_free("0.0.0.0" if family == socket.AF_INET else "::", port)
    assert is_free(host, port)
    assert not [listener for listener in listeners() if listener.port == port]


def test_a_process_name_may_hold_what_separates_columns(tmp_path: Path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as child:
        try:
            found = process(child.pid)
            assert found is not None
            assert (found.parent, found.session) == (os.getpid(), os.getsid(0))
        finally:
            child.kill()
