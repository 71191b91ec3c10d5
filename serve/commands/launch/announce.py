"""Announce: describes a started service: its address, its open ports and who can reach them.

In:    the processes of a service, their open ports
Out:   text for a terminal
Never: expected ports: it lists those the kernel reports
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from serve.commands.launch.processes import Listener, Process, listeners
from serve.commands.launch.run_log import STDOUT

DASHBOARD_PORTS = range(8265, 8316)  # Ray takes the first free one
INGRESS_PORTS = range(30_000, 31_001)  # Serve's: where ingress replicas speak HTTP to HAProxy
RAY = "Ray's own processes"
REPLICA_CALLS = "calls between replicas"
BEHIND_HAPROXY = "API behind HAProxy"
WITH_TOKEN = frozenset({RAY, REPLICA_CALLS, "Ray's dashboard"})
FIRST_WORDS = '{"input": "Five one one, two five five.", "voice": "default", "seed": 1, "response_format": "wav"}'
ANY_HOST = "0.0.0.0"
EVERYONE, NO_TOKEN = "everyone who reaches this machine", "WITHOUT A TOKEN: RAY_AUTH_MODE is disabled"


def own_listeners(processes: Sequence[Process]) -> list[tuple[Process, Listener]]:
    """Returns the open ports of these processes."""
    by_pid = {process.pid: process for process in processes}
    return [(by_pid[listener.pid], listener) for listener in listeners() if listener.pid in by_pid]


def gcs_address(processes: Sequence[Process]) -> str | None:
    """Returns the address to which Ray's drivers connect; None while there is none."""
    matches = (re.search(r"--gcs-address=(\S+)", process.command()) for process in processes)
    return next((match[1] for match in matches if match is not None), None)


def dashboard_url(opened: Sequence[tuple[Process, Listener]]) -> str | None:
    """Returns the URL of Ray's dashboard; None if there is none."""
    ports = [listener.port for process, listener in opened if is_dashboard(process, listener)]
    return f"http://127.0.0.1:{ports[0]}" if ports else None


def is_dashboard(process: Process, listener: Listener) -> bool:
    """True for the port that browsers and `serve status` use."""
    return "/dashboard/dashboard.py" in process.command() and listener.port in DASHBOARD_PORTS


def port_use(process: Process, listener: Listener, service_port: int, haproxy: Mapping[int, str]) -> str:
    """Returns what a port is for."""
    if listener.port == service_port:
        return "page and API"
    if is_dashboard(process, listener):
        return "Ray's dashboard"
    if process.name == "haproxy" or listener.port in haproxy:
        return haproxy.get(listener.port, "HAProxy")
    title = process.command()
    if title.startswith("ray::ServeReplica") and listener.port in INGRESS_PORTS:
        return BEHIND_HAPROXY
    if "ray::ServeReplica" in title and not listener.is_local:
        return REPLICA_CALLS
    return RAY


def open_ports(
    opened: Sequence[tuple[Process, Listener]], service_port: int, haproxy: Mapping[int, str], token: bool
) -> Iterator[str]:
    """Yields a line per kind of port: the numbers, the use, who can reach it.

    Args:
        opened: the ports, as `own_listeners` returns them.
        service_port: the port of http_options.
        haproxy: what HAProxy's other ports are for.
        token: whether Ray's processes require one.
    """
    groups: dict[tuple[str, bool], list[Listener]] = defaultdict(list)
    for process, listener in opened:
        groups[port_use(process, listener, service_port, haproxy), listener.is_local].append(listener)
    order = sorted(groups, key=lambda group: (group[0] == RAY, min(listener.port for listener in groups[group])))
    for use, is_local in order:
        numbers = sorted({listener.port for listener in groups[use, is_local]})
        where = ", ".join(map(str, numbers)) if len(numbers) <= 4 else f"{len(numbers)} ports"
        audience = "this machine" if is_local else EVERYONE
        if use in WITH_TOKEN:
            audience += ", only with the token" if token else f", {NO_TOKEN}"
        yield f"{where:<22} {use:<24} {audience}"


def ray_details(ports: Sequence[str], access: Path) -> Iterator[str]:
    """Yields the ports that others reach, or that need no token, and how Ray's own commands reach this cluster."""
    for line in (line for line in ports if EVERYONE in line or NO_TOKEN in line):
        yield f"  Open:  {line}"
    yield f"  Ray:   . '{access}'; serve status"


def announcement(url: str, checkpoint: str, log: str, details: Iterable[str]) -> str:
    """Returns what is printed once the service is ready; `log` is where it logs, `details` are lines of the runtime's own."""
    note = ("  Note:  the demo voice is small and mispronounces words; chattts-serve weights fetch gets the real weights",)
    lines = (
        "",
        f"  Page:  {url}/",
        f"  Hear:  curl {url}/v1/audio/speech -H 'Content-Type: application/json' -d '{FIRST_WORDS}' -o hello.wav",
        *details,
        *((f"  Log:   {log}",) if log != STDOUT else ()),
        *(note if checkpoint == "demo" else ()),
        "  Stop:  Ctrl-C",
        "",
    )
    return "\n".join(lines)


def address_here(host: str, port: int) -> str:
    """Returns the URL of a service for clients on this machine."""
    return f"http://{'127.0.0.1' if host == ANY_HOST else host}:{port}"
