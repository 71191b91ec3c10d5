"""A network in which another machine would be: a namespace joined to this one by a pair of virtual interfaces."""

import asyncio
import contextlib
import os
import subprocess
import threading
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


def set_link(*, up: bool) -> None:
    """Joins that network to this one, or parts them: packets are lost, and nobody is told. Joined at first."""
    assert _worked(f"ip link set a{os.getpid()} {'up' if up else 'down'}"), "the link's state could not be changed"


@contextlib.contextmanager
def slow_relay(port: int, *, piece: int, pause_s: float) -> Iterator[int]:
    """A port whose connections go on to another one of this machine, answers in small pieces with a pause after each."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait_s: float) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(piece):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(wait_s)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, back, 0.0), copy(there, writer, pause_s))

    async def end() -> None:
        """Connections are kept alive on both sides: they end with the relay."""
        server.close()
        relays = asyncio.all_tasks() - {asyncio.current_task()}
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(relay, "127.0.0.1", 0), loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _worked(command: str) -> bool:
    return subprocess.run(command.split(), capture_output=True, check=False).returncode == 0
